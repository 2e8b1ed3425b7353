"""An environment with what it says of itself, checked once; and a call of it, whose failure is a value.

Calls are made as `backends.calling.style` has it. Sync ones run in daemon threads, not in those that the run's own work
needs: one that hangs must hold up neither the run nor the process at its end. Coroutines run on the loop that rewards
have of their own, so that one that blocks does not stop the run.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlctl.backends.calling import style
from rlctl.errors import ConfigError, RewardError
from rlctl.rewards.outcome import Failure, describe
from rlctl.rewards.threads import in_thread, on_reward_loop

METHODS = ("reset", "step")
DOCS = "docs/environments.md has the contract."


@dataclass(frozen=True, slots=True)
class LoadedEnvironment:
    """An environment under its name; the fields are those of `base.py`."""

    name: str
    environment: Any
    timeout_s: float
    grades: bool
    stop: tuple[str, ...]
    roles: tuple[str, ...]
    tools: tuple[Mapping[str, Any], ...]
    inline: bool
    finishes: bool

    async def call(self, method: str, *arguments: object, unclaimed: Callable[[Any], None] = lambda value: None) -> Any:
        """What the method gives, or a Failure: it raised, or gave nothing in time.

        `unclaimed` is called with what a method that is no coroutine gives when nobody waits for it any more.
        """
        function = getattr(self.environment, method)
        if self.inline:
            return await _guarded(f"{method} raised", lambda: _at_once(function, arguments))
        name = f"environment {self.name}"
        task = asyncio.ensure_future(
            _guarded(f"{method} raised", lambda: _elsewhere(name, function, arguments, unclaimed=unclaimed))
        )
        try:
            # Not wait_for: it would wait for a coroutine that swallows its cancellation.
            done, _ = await asyncio.wait({task}, timeout=self.timeout_s)
        except asyncio.CancelledError:
            if task.done() and not task.cancelled() and task.exception() is None:
                unclaimed(task.result())
            raise
        finally:
            task.cancel()
        if not done:
            return Failure("timeout", f"{method} gave nothing within {self.timeout_s:g} s")
        return task.result()

    def free(self, state: Any, ending: str) -> None:
        """Let it finish a rollout that is over for everybody else, in a thread of its own."""
        if self.finishes:
            finishing = threading.Thread(
                target=lambda: asyncio.run(self.call("finish", state, ending)),
                name=f"environment {self.name}, finish",
                daemon=True,
            )
            finishing.start()

    def close(self) -> None:
        """Let it close. Raises RewardError when it fails at that. Needs a thread without an event loop."""
        if not callable(getattr(self.environment, "close", None)):
            return
        outcome = asyncio.run(self.call("close"))
        if isinstance(outcome, Failure):
            raise RewardError(
                f"environment {self.name}: {outcome.text}.", hint="the run itself is over and saved; mend close."
            )


async def _guarded(what: str, make: Callable[[], Any]) -> Any:
    try:
        return await make()
    except RewardError:
        raise
    except asyncio.CancelledError:
        # The environment's own, unless it is this call that is being cancelled.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Failure("exception", f"{what} CancelledError")
    # Code of the user's, which may raise anything, and must not end the training.
    except (Exception, SystemExit) as error:
        return Failure("exception", f"{what} {describe(error)}")


async def _at_once(function: Callable[..., Any], arguments: tuple[object, ...]) -> Any:
    return function(*arguments)


async def _elsewhere(
    name: str, function: Callable[..., Any], arguments: tuple[object, ...], *, unclaimed: Callable[[Any], None]
) -> Any:
    try:
        if style(function) in ("async", "returns awaitable"):
            return await on_reward_loop(lambda: function(*arguments))
        value = await in_thread(name, lambda: function(*arguments), unclaimed=unclaimed)
        return await on_reward_loop(lambda: value) if inspect.isawaitable(value) else value
    except KeyboardInterrupt as error:
        # Ctrl-C reaches the main thread alone: this one was raised by what a tool runs, the policy's own code say.
        raise RuntimeError(f"KeyboardInterrupt {error}".rstrip()).with_traceback(error.__traceback__) from None


def loaded(name: str, environment: Any, *, timeout_s: float) -> LoadedEnvironment:
    """The environment, with what it says of itself. Raises ConfigError with everything that is wrong with it."""
    complaints = [
        f"environment {name!r} has no method {method}."
        for method in METHODS
        if not callable(getattr(environment, method, None))
    ]
    # Any: foreign attributes, checked below.
    says: dict[str, Any] = {"grades": True, "stop": (), "roles": ("user",), "tools": (), "runs": "thread"}
    said = {key: getattr(environment, key, default) for key, default in says.items()}
    complaints += [
        f"environment {name!r}: {key} = {said[key]!r} must be {wanted}."
        for key, (fits, wanted) in _SHAPES.items()
        if not fits(said[key])
    ]
    if complaints:
        raise ConfigError("\n".join(complaints), hint=DOCS)
    return LoadedEnvironment(
        name=name,
        environment=environment,
        timeout_s=timeout_s,
        grades=said["grades"],
        stop=tuple(said["stop"]),
        roles=tuple(said["roles"]),
        tools=tuple(said["tools"]),
        inline=said["runs"] == "inline",
        finishes=callable(getattr(environment, "finish", None)),
    )


def _are_texts(value: object) -> bool:
    # A text is a sequence of texts too, and never what was meant.
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(v, str) and v for v in value)


_SHAPES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "grades": (lambda value: isinstance(value, bool), "true or false"),
    "stop": (_are_texts, "a list of texts, none empty"),
    "roles": (_are_texts, "a list of texts, none empty"),
    "tools": (
        lambda value: isinstance(value, Sequence) and all(isinstance(tool, Mapping) for tool in value),
        "a list of JSON schemas",
    ),
    "runs": (lambda value: value in ("inline", "thread"), "'inline' or 'thread'"),
}
