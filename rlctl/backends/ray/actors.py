"""Calls on actors: ask some or all of them, and say in a sentence what went wrong with whom.

Ray wraps what an actor raises and tells of a dead one in a page; here both become errors of ours.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from ray.exceptions import RayActorError, RayError, RayTaskError

from rlctl.backends.ray.waiting import Died, Patience, answers
from rlctl.errors import BackendError, OutOfMemory, RlctlError

T = TypeVar("T")


async def answer(name: str, reference: Awaitable[T]) -> T:
    """What an actor's method gave. Raises Died, or the RlctlError it raised, or BackendError for any other."""
    start = time.time()
    try:
        return await reference
    except RayActorError as error:
        raise Died(
            f"{name} died after {time.time() - start:.0f} s: {_reason(error)}",
            hint="was it killed, for memory or by hand? Ray's logs are in session_latest/logs of its temporary folder.",
            who=name,
        ) from None
    except RayTaskError as error:
        cause = error.cause if isinstance(error.cause, BaseException) else error
        if isinstance(cause, RlctlError):
            raise cause from None
        raise _foreign(name, cause) from error
    except RayError as error:
        raise BackendError(f"{name}: {_first_line(error)}") from error


def _foreign(name: str, cause: BaseException) -> BackendError:
    told = f"{name} failed: {type(cause).__name__}: {_first_line(cause)}"
    if "OutOfMemory" in type(cause).__name__:
        return OutOfMemory(told, hint="lower trainer.max_tokens_per_device, or raise remote_backend.ray.zero_stage.")
    return BackendError(told)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else "no reason given"


def _reason(error: BaseException) -> str:
    """What Ray found out of the death, without its page of advice."""
    told = [line.strip() for line in str(error).splitlines() if "died" in line or "exit" in line.lower()]
    return told[0] if told else _first_line(error)


async def ask(
    actors: Mapping[str, Any], call: Callable[[Any], Awaitable[T]], *, what: str, patience: Patience
) -> dict[str, T]:
    """The answer of every actor by name; `call` makes the reference from a handle. Raises the first error."""
    asked = {name: answer(name, call(actor)) for name, actor in actors.items()}
    return await answers(asked, what=what, patience=patience)
