"""Score a batch of completions: every reward on every completion, at once, and never a silent zero.

A call that raises, times out, kills its worker or gives NaN is a failed call: its completion's reward is None, and the
failure is kept with its kind and text. A call that returns something else than a number is a broken contract and ends
the run. So does a batch in which every completion failed: there is nothing to learn from, and the next batch would be
no better. Where calls run is `base.Place`; `threads.py` and `workers.py` run those that are not inline.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field

from rlctl.errors import RewardError
from rlctl.rewards.base import NamedReward, RewardSet
from rlctl.rewards.outcome import Failure, FailureKind, Outcome, describe, outcome_of
from rlctl.rewards.threads import in_thread, is_async, on_reward_loop
from rlctl.rewards.workers import WorkerPool
from rlctl.types import Problem

MAX_RUNNING_CALLS = 64
"""Calls in threads or coroutines in flight: enough to hide a judge's latency, few enough for its rate limit."""

MAX_TIMEOUTS_IN_A_ROW = 24
"""In worker processes. After so many, each at its full deadline, the rest of the batch is not waited for."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What the rewards said of one completion. `reward` is the weighted sum, None when a reward failed.

    `failures` has the kind of each reward that failed, `failure` says what happened.
    """

    reward: float | None
    scores: dict[str, float]
    note: str = ""
    failure: str | None = None
    failures: tuple[FailureKind, ...] = ()
    parts: tuple[tuple[float, float], ...] = field(default=(), compare=False)
    """(weight, score) of each reward, in their order."""


async def score(reward_set: RewardSet, items: Sequence[tuple[Problem, str]]) -> list[Scored]:
    """What each completion is worth: [N] (problem, completion text) -> [N] Scored.

    Raises RewardError when a reward returns no number, when every completion failed, or when too many calls
    are stuck.
    """
    rows = await call_all(reward_set, items)
    scored = [_combine(reward_set, problem, row) for (problem, _), row in zip(items, rows, strict=True)]
    if scored and all(one.failure for one in scored):
        raise RewardError(
            f"the reward failed on all {len(scored)} completions; the first: {scored[0].failure}",
            hint="call the function on one completion by hand; raise reward.timeout_s if it is only slow.",
        )
    return scored


async def call_all(reward_set: RewardSet, items: Sequence[tuple[Problem, str]]) -> list[list[Outcome]]:
    """Each reward on each completion, in order: [N] -> [N][R]. Raises RewardError when a contract is broken."""
    batch = _Batch(reward_set)
    calls = [batch.call(reward, problem, text) for problem, text in items for reward in reward_set.rewards]
    outcomes = await _together(calls)
    width = len(reward_set.rewards)
    return [outcomes[i * width : (i + 1) * width] for i in range(len(items))]


def _combine(reward_set: RewardSet, problem: Problem, outcomes: Sequence[Outcome]) -> Scored:
    """The only place where weights are applied."""
    pairs = list(zip(reward_set.rewards, outcomes, strict=True))
    results = [(reward.name, outcome.result) for reward, outcome in pairs if outcome.result]
    scores = {name: result.score for name, result in results}
    for _, result in results:
        # A reward's own score keeps its name, whatever another calls its extras.
        scores |= {name: value for name, value in result.extra.items() if name not in scores}
    note = "; ".join(filter(None, (": ".join(filter(None, (r.form, r.note))) for _, r in results)))
    failed = [(reward, outcome.failure) for reward, outcome in pairs if outcome.failure]
    if failed:
        failure = "; ".join(f"{reward.name} on {problem.id}: {why.text}" for reward, why in failed)
        return Scored(None, scores, note, failure, tuple(why.kind for _, why in failed))
    parts = tuple((reward.weight, scores[reward.name]) for reward, _ in pairs)
    return Scored(sum(weight * score for weight, score in parts), scores, note, parts=parts)


async def _together(calls: Sequence[Coroutine[None, None, Outcome]]) -> list[Outcome]:
    """All results in order; the first error ends the other calls."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Batch:
    """What the calls of one batch share: slots, and how many calls of a reward timed out with none between."""

    def __init__(self, reward_set: RewardSet) -> None:
        self.pool, self.timeout_s = reward_set.pool, reward_set.timeout_s
        self.slots = asyncio.Semaphore(MAX_RUNNING_CALLS)
        # One more call for each worker, so that none waits for the event loop.
        self.worker_slots = asyncio.Semaphore(2 * self.pool.size if self.pool else 1)
        self.timeouts: Counter[str] = Counter()

    async def call(self, reward: NamedReward, problem: Problem, completion: str) -> Outcome:
        """One reward on one completion, where it is to run."""
        if reward.inline:
            return await _guarded(reward, problem, completion)
        if self.pool and reward.runs == "process" and not is_async(reward.function):
            async with self.worker_slots:
                return await self._in_worker(self.pool, reward, problem, completion)
        async with self.slots:
            return await _within(None if reward.keeps_time else self.timeout_s, reward, problem, completion)

    async def _in_worker(self, pool: WorkerPool, reward: NamedReward, problem: Problem, completion: str) -> Outcome:
        if self.timeouts[reward.name] >= MAX_TIMEOUTS_IN_A_ROW:
            text = f"not called: {MAX_TIMEOUTS_IN_A_ROW} calls before it had no result within {self.timeout_s:g} s"
            return Outcome(None, Failure("timeout", text))
        outcome = await asyncio.wrap_future(pool.submit(reward, problem, completion, timeout_s=self.timeout_s))
        timed_out = outcome.failure is not None and outcome.failure.kind == "timeout"
        self.timeouts[reward.name] = self.timeouts[reward.name] + 1 if timed_out else 0
        return outcome


async def _within(timeout_s: float | None, reward: NamedReward, problem: Problem, completion: str) -> Outcome:
    task = asyncio.ensure_future(_guarded(reward, problem, completion))
    try:
        # Not wait_for: it would wait for a coroutine that swallows its cancellation.
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    finally:
        task.cancel()
    if timeout_s is not None and not done:
        return Outcome(None, Failure("timeout", f"no result within {timeout_s:g} s"), timeout_s)
    return task.result()


async def _guarded(reward: NamedReward, problem: Problem, completion: str) -> Outcome:
    """The function's result, awaited where it is awaitable; a failure when it raised or gave NaN or infinity."""
    start = time.perf_counter()
    try:
        value = await _value(reward, problem, completion)
    except RewardError:
        raise
    except asyncio.CancelledError:
        # The reward's own, unless it is this call that is being cancelled.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Outcome(None, Failure("exception", "CancelledError"), time.perf_counter() - start)
    # Code of the user's, which may raise anything. SystemExit too: a reward that runs the model's code must not
    # let that code end the training.
    except (Exception, SystemExit) as error:
        return Outcome(None, Failure("exception", describe(error)), time.perf_counter() - start)
    return outcome_of(reward.name, value, weight=reward.weight, seconds=time.perf_counter() - start)


async def _value(reward: NamedReward, problem: Problem, completion: str) -> object:
    if reward.inline:
        return reward.function(problem, completion)
    if is_async(reward.function):
        return await on_reward_loop(lambda: reward.function(problem, completion))
    value = await in_thread(f"reward {reward.name}", lambda: reward.function(problem, completion))
    return await on_reward_loop(lambda: value) if inspect.isawaitable(value) else value
