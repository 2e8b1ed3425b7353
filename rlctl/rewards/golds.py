"""Gold completions: what a right answer looks like to each reward, and whether it gets full marks.

A run asks before its first step (`check_golds`): a reward that does not pay for the gold answer cannot be learned
from. Built-in rewards say how a gold completion looks; a custom one may, with two attributes:

    def reward(problem, completion): ...
    reward.gold_completion = lambda problem: f"<answer>{problem.answer}</answer>"
    reward.full_marks = 2.0     # 1.0 where it does not say

Of one that does not, nothing is known: it is not judged.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from rlctl.errors import RewardError
from rlctl.rewards.base import NamedReward, RewardSet
from rlctl.rewards.numbers import shorten
from rlctl.rewards.outcome import Outcome, describe
from rlctl.rewards.scoring import call_all
from rlctl.types import Problem

SAMPLE = 32
"""Problems whose gold answers are scored before a run: a second at most, unless the reward is slow."""

MANY = 5
"""Answers shown of each kind in an error."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Gold:
    """A problem and a completion that should get full marks."""

    problem: Problem
    completion: str


def check_golds(reward_set: RewardSet, problems: Sequence[Problem]) -> list[str]:
    """Score gold answers of a sample of the problems; returns notes on rewards that could not be judged.

    Raises RewardError when a gold answer does not get full marks, or a reward fails on all of them.
    """
    notes = []
    sample = spread(problems, SAMPLE)
    for reward in reward_set.rewards:
        golds = gold_completions(reward, sample)
        if golds is None:
            notes.append(
                f"the reward {reward.name} does not say how a right answer looks (gold_completion), so it was not tried"
            )
            continue
        outcomes = finished(score_with(reward_set, reward, [(gold.problem, gold.completion) for gold in golds]))
        notes += _judge(reward, golds, outcomes)
    return notes


def spread(problems: Sequence[Problem], count: int) -> list[Problem]:
    """`count` problems, evenly over all of them."""
    size = min(count, len(problems))
    return [problems[i * len(problems) // size] for i in range(size)]


def gold_completions(reward: NamedReward, problems: Sequence[Problem]) -> list[Gold] | None:
    """What should get full marks; None when the reward does not say. Raises RewardError when saying so fails."""
    made = reward.gold_completion
    if made is None:
        return None
    golds = []
    for problem in problems:
        try:
            completion = made(problem)
        # Code of the user's, which may raise anything.
        except Exception as error:
            raise RewardError(
                f"reward {reward.name}: gold_completion of {problem.id} raised {describe(error)}."
            ) from error
        if completion is not None and not isinstance(completion, str):
            raise RewardError(f"reward {reward.name}: gold_completion of {problem.id} is {completion!r:.40}, not text.")
        if completion is not None:
            golds.append(Gold(problem, completion))
    return golds


def full_marks(reward: NamedReward) -> float:
    """What a right answer gets. Raises RewardError when the reward says something else than a number."""
    said = getattr(reward.function, "full_marks", 1.0)
    if isinstance(said, bool) or not isinstance(said, int | float) or not math.isfinite(said):
        raise RewardError(f"reward {reward.name}: full_marks is {said!r:.40}, not a finite number.")
    return float(said)


def has_full_marks(reward: NamedReward, outcome: Outcome) -> bool:
    return outcome.result is not None and outcome.result.score >= full_marks(reward) - 1e-9


async def score_with(reward_set: RewardSet, reward: NamedReward, items: Sequence[tuple[Problem, str]]) -> list[Outcome]:
    """One reward of the set on each text, in order."""
    alone = RewardSet((reward,), reward_set.timeout_s, reward_set.pool)
    return [row[0] for row in await call_all(alone, items)]


def finished(work: Coroutine[None, None, Answer]) -> Answer:
    """What the coroutine gives, from sync code, whether or not an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, work).result()


def _judge(reward: NamedReward, golds: Sequence[Gold], outcomes: Sequence[Outcome]) -> list[str]:
    failed = [(gold, outcome.failure) for gold, outcome in zip(golds, outcomes, strict=True) if outcome.failure]
    if failed and len(failed) == len(golds):
        gold, why = failed[0]
        raise RewardError(
            f"reward {reward.name} fails on the gold answers of all {len(golds)} problems tried; the first: "
            f"{gold.problem.id}: {why.text}",
            hint=_CURE,
        )
    short = [
        (gold, outcome.result)
        for gold, outcome in zip(golds, outcomes, strict=True)
        if outcome.result and not has_full_marks(reward, outcome)
    ]
    if short:
        shown = "".join(
            f"\n{gold.problem.id}: {result.score:g} for {shorten(gold.completion[-40:])!r}"
            + (f" ({result.note})" if result.note else "")
            for gold, result in short[:MANY]
        )
        raise RewardError(
            f"reward {reward.name} gives {len(short)} of {len(golds)} gold answers less than full marks "
            f"({full_marks(reward):g}), so they could not be learned:{shown}",
            hint=_CURE,
        )
    return [f"the reward {reward.name} failed on {len(failed)} of {len(golds)} gold answers"] if failed else []


_CURE = "`rlctl reward check` shows more; mend the data or the reward, or set reward.check = false."
