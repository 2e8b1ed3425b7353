"""Score a batch of completions: every reward on every completion, at once, and never a silent zero.

A call that raises, times out or gives NaN is a failed call: its completion's reward is None, and the failure is
kept as text. A call that returns something else than a number is a broken contract and ends the run. So does a
batch in which every completion failed: there is nothing to learn from, and the next batch would be no better.

Time-outs use no signal: they work in any thread and in any event loop. A sync function runs in a daemon thread,
since a thread that is stuck cannot be ended and must not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import math
import numbers
import threading
import traceback
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlctl.errors import RewardError
from rlctl.rewards.base import NamedReward, Reward, RewardResult, RewardSet
from rlctl.types import Problem

MAX_RUNNING_CALLS = 64
"""Calls of custom rewards in flight: enough to hide a judge's latency, few enough for its rate limit."""

MAX_STUCK_THREADS = 64
"""Threads that outlived their time-out. Each holds memory, and perhaps a core, until the process ends."""


LARGEST_REWARD = 1e12
"""Weighted rewards of that size drown every other, and their squares leave floating point."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What the rewards said of one completion. `reward` is the weighted sum, None when a reward failed."""

    reward: float | None
    scores: dict[str, float]
    note: str = ""
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One call's result, or why there is none."""

    result: RewardResult | None
    failure: str = ""


async def score(reward_set: RewardSet, items: Sequence[tuple[Problem, str]]) -> list[Scored]:
    """What each completion is worth: [N] (problem, completion text) -> [N] Scored.

    Raises RewardError when a reward returns no number, when every completion failed, or when too many calls
    are stuck.
    """
    slots = asyncio.Semaphore(MAX_RUNNING_CALLS)
    outcomes = await _together(
        [
            _call(reward, problem, completion, timeout_s=reward_set.timeout_s, slots=slots)
            for problem, completion in items
            for reward in reward_set.rewards
        ]
    )
    width = len(reward_set.rewards)
    scored = [_combine(reward_set, outcomes[i * width : (i + 1) * width]) for i in range(len(items))]
    if scored and all(one.failure for one in scored):
        raise RewardError(
            f"the reward failed on all {len(scored)} completions; the first: {scored[0].failure}",
            hint="call the function on one completion by hand; raise reward.timeout_s if it is only slow.",
        )
    return scored


def _combine(reward_set: RewardSet, outcomes: Sequence[_Outcome]) -> Scored:
    """The only place where weights are applied."""
    pairs = list(zip(reward_set.rewards, outcomes, strict=True))
    scores = {reward.name: outcome.result.score for reward, outcome in pairs if outcome.result}
    for _, outcome in pairs:
        # A reward's own score keeps its name, whatever another calls its extras.
        scores |= {name: value for name, value in _extras(outcome).items() if name not in scores}
    note = "; ".join(filter(None, (_note(outcome.result) for _, outcome in pairs if outcome.result)))
    failure = "; ".join(filter(None, (outcome.failure for _, outcome in pairs)))
    if failure:
        return Scored(None, scores, note, failure)
    return Scored(sum(reward.weight * scores[reward.name] for reward, _ in pairs), scores, note)


def _extras(outcome: _Outcome) -> dict[str, float]:
    return dict(outcome.result.extra) if outcome.result else {}


def _note(result: RewardResult) -> str:
    return ": ".join(filter(None, (result.form, result.note)))


async def _together(calls: Sequence[Coroutine[None, None, _Outcome]]) -> list[_Outcome]:
    """All results in order; the first error ends the other calls."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _call(
    reward: NamedReward, problem: Problem, completion: str, *, timeout_s: float, slots: asyncio.Semaphore
) -> _Outcome:
    """One reward on one completion."""
    if reward.inline:
        return await _guarded(reward, problem, completion)
    async with slots:
        task = asyncio.ensure_future(_guarded(reward, problem, completion))
        try:
            # Not wait_for: it would wait for a coroutine that swallows its cancellation.
            done, _ = await asyncio.wait({task}, timeout=None if reward.keeps_time else timeout_s)
        finally:
            task.cancel()
    if not done:
        return _failed(reward, problem, f"no result within {timeout_s:g} s")
    return task.result()


async def _guarded(reward: NamedReward, problem: Problem, completion: str) -> _Outcome:
    """The function's result, awaited where it is awaitable; a failure when it raised or gave NaN or infinity."""
    try:
        if reward.inline:
            value: object = reward.function(problem, completion)
        elif _is_async(reward.function):
            value = await _on_reward_loop(lambda: reward.function(problem, completion))
        else:
            value = await _in_thread(reward, problem, completion)
        if inspect.isawaitable(value):
            awaitable = value
            value = await _on_reward_loop(lambda: awaitable)
    except RewardError:
        raise
    except asyncio.CancelledError:
        # The reward's own, unless it is this call that is being cancelled.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return _failed(reward, problem, "CancelledError")
    # Code of the user's, which may raise anything. SystemExit too: a reward that runs the model's code must not
    # let that code end the training.
    except (Exception, SystemExit) as error:
        return _failed(reward, problem, _describe(error))
    result = _as_result(reward, value)
    if not abs(result.score * reward.weight) < LARGEST_REWARD:
        return _failed(reward, problem, f"returned {result.score:g}, which is no usable number")
    return _Outcome(result)


async def _on_reward_loop(make: Callable[[], object]) -> object:
    """What the awaitable that `make` makes gives, awaited on a loop of the rewards' own.

    All async rewards share that loop, so a client one of them keeps stays usable. It runs in a daemon thread: a
    coroutine that blocks, or swallows its cancellation, holds up neither the run nor the process at its end.
    """

    async def awaited() -> _Answer:
        try:
            made = make()
            return (await made if inspect.isawaitable(made) else made), None
        # Carried over to `_guarded`, as in `_run`: SystemExit would end the loop of all the others.
        except BaseException as error:
            return None, error

    value, error = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(awaited(), _reward_loop()))
    if error is not None:
        raise error
    return value


@functools.cache
def _reward_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rlctl-rewards", daemon=True).start()
    return loop


def _is_async(function: Reward) -> bool:
    """Whether calling it only makes a coroutine. A False is no promise: the result decides, after the call."""
    call = getattr(function, "__call__", None)  # noqa: B004  # not whether it can be called, but how
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _failed(reward: NamedReward, problem: Problem, what: str) -> _Outcome:
    return _Outcome(None, f"{reward.name} on {problem.id}: {what}")


def _describe(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:300]}{place}"


def _as_result(reward: NamedReward, value: object) -> RewardResult:
    """Raises RewardError when the value is of a type the contract does not know."""
    if isinstance(value, RewardResult):
        return replace(value, score=_number(reward, value.score), note=str(value.note), form=str(value.form))
    return RewardResult(_number(reward, value))


def _number(reward: NamedReward, value: object) -> float:
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return float(bool(value))
    # numbers.Real: int, bool, float and numpy's numbers; no list, array, string or None.
    if not isinstance(value, numbers.Real):
        raise RewardError(
            f"reward {reward.name} must return one number for one completion, got {_kind(value)}.",
            hint="return a float, a bool or a RewardResult.",
        )
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _kind(value: object) -> str:
    """What it is, in a few words: `list of 7`, `numpy.ndarray`, `None`."""
    if value is None:
        return "None"
    if isinstance(value, list | tuple | dict | str):
        return f"{type(value).__name__} of {len(value)}"
    module = type(value).__module__
    return type(value).__qualname__ if module == "builtins" else f"{module}.{type(value).__qualname__}"


# Sync functions: each call in a daemon thread

_Answer = tuple[object, BaseException | None]

_stuck: set[threading.Thread] = set()


async def _in_thread(reward: NamedReward, problem: Problem, completion: str) -> object:
    """The function's result; when cancelled, its thread is counted as stuck for as long as it runs."""
    _refuse_too_many_stuck(reward)
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_Answer] = loop.create_future()

    def work() -> None:
        outcome = _run(reward, problem, completion)
        # A closed loop raises: nobody waits for the answer any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_deliver, answer, outcome)

    thread = threading.Thread(target=work, name=f"reward {reward.name}", daemon=True)
    thread.start()
    try:
        value, error = await answer
    except asyncio.CancelledError:
        _stuck.add(thread)
        raise
    if error is not None:
        raise error
    return value


def _run(reward: NamedReward, problem: Problem, completion: str) -> _Answer:
    try:
        return reward.function(problem, completion), None
    # Not handled here, only carried to the event loop, where `_guarded` decides.
    except BaseException as error:
        return None, error


def _deliver(answer: asyncio.Future[_Answer], outcome: _Answer) -> None:
    if not answer.done():
        answer.set_result(outcome)


def _refuse_too_many_stuck(reward: NamedReward) -> None:
    _stuck.difference_update([thread for thread in _stuck if not thread.is_alive()])
    if len(_stuck) > MAX_STUCK_THREADS:
        raise RewardError(
            f"reward {reward.name}: {len(_stuck)} calls still run after their time-out.",
            hint="a thread cannot be ended from outside; give the function a time limit of its own.",
        )
