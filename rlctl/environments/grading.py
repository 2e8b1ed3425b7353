"""The reward `environment`: each problem is graded by the package it came from.

It takes the place of the first reward function where a source brings a grader, and hands problems that have none on
to that function, so that a mixture of a file and a package is graded by both.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace

from rlctl.environments import reasoning_gym, verifiers
from rlctl.rewards import Reward, RewardSet
from rlctl.rewards.base import NamedReward, Value
from rlctl.settings import Settings
from rlctl.types import Problem

NAME = "environment"

GRADERS: Mapping[str, Callable[..., object]] = {
    reasoning_gym.PREFIX: reasoning_gym.grade,
    verifiers.PREFIX: verifiers.grade,
}
"""Prefix of a source -> its grader, called with (problem, completion)."""


@dataclass(frozen=True, slots=True)
class OwnGrader:
    """A reward; `otherwise` grades the problems that came without a grader."""

    otherwise: Reward

    def __call__(self, problem: Problem, completion: str) -> Value:
        grader = problem.extra.get("grader")
        graded = self.otherwise if grader is None else GRADERS[str(grader)]
        return graded(problem, completion)  # type: ignore[return-value]  # checked where rewards are called

    def gold_complaint(self, problem: Problem) -> str | None:
        """A package's golds are its own business."""
        complaint = getattr(self.otherwise, "gold_complaint", None)
        return complaint(problem) if complaint and "grader" not in problem.extra else None

    def gold_completion(self, problem: Problem) -> str | None:
        completion = getattr(self.otherwise, "gold_completion", None)
        return completion(problem) if completion and "grader" not in problem.extra else None

    def close(self) -> None:
        """End what the other reward has running."""
        close = getattr(self.otherwise, "close", None)
        if close is not None:
            close()

    def answer(self, problem: Problem, completion: str) -> Hashable | None:
        """What a majority vote counts."""
        if "grader" in problem.extra:
            return reasoning_gym.find_answer(completion)
        answer = getattr(self.otherwise, "answer", None)
        return answer(problem, completion) if answer else None


def has_own_grader(source: str) -> bool:
    return source.startswith(tuple(GRADERS))


def with_own_graders(rewards: RewardSet, settings: Settings) -> tuple[RewardSet, list[str]]:
    """The rewards with the packages' graders in the first one's place, and what to tell of it."""
    own = [table.source for table in settings.data.tables() if not table.path and has_own_grader(table.source)]
    if not own or not settings.reward.own_grader:
        return rewards, []
    first = rewards.rewards[0]
    reward = NamedReward(NAME, OwnGrader(first.function), first.weight, ours=first.ours)
    told = f"{', '.join(own)}: graded by the package itself, as reward {NAME!r}, in place of {first.name!r}"
    return replace(rewards, rewards=(reward, *rewards.rewards[1:])), [f"{told}; reward.own_grader = false keeps that"]
