"""Values beside a score, and rewards that keep time by themselves."""

from __future__ import annotations

import asyncio
import time

from rlctl.display import core_scores
from rlctl.rewards.base import NamedReward, RewardResult, RewardSet
from rlctl.rewards.scoring import score
from rlctl.types import Problem

PROBLEM = Problem("p", "2 + 2?", "4")


def test_extras_stand_beside_the_scores_and_weigh_nothing() -> None:
    def task(problem: Problem, completion: str) -> RewardResult:
        return RewardResult(0.5, extra={"form": 1.0, "length": 7.0})

    def form(problem: Problem, completion: str) -> RewardResult:
        return RewardResult(0.25, extra={"task": 9.0})

    rewards = RewardSet((NamedReward("task", task), NamedReward("form", form, 2.0)), timeout_s=5)
    (one,) = asyncio.run(score(rewards, [(PROBLEM, "4")]))
    assert one.reward == 0.5 + 2 * 0.25
    assert one.scores == {"task": 0.5, "form": 0.25, "length": 7.0}


def test_a_reward_that_keeps_time_is_not_cut_off_while_it_waits_for_its_turn() -> None:
    class Patient:
        keeps_time = True

        def __call__(self, problem: Problem, completion: str) -> float:
            time.sleep(0.2)
            return 1.0

    rewards = RewardSet((NamedReward("patient", Patient()),), timeout_s=0.05)
    (one,) = asyncio.run(score(rewards, [(PROBLEM, "4")]))
    assert one.reward == 1.0


def test_an_evaluation_shows_what_stands_beside_a_score_and_nothing_else() -> None:
    plain = {
        "val-core/a/acc/mean@1": 0.5,
        "val-core/a/reward/mean@1": 0.5,
        "val-aux/a/response_length/mean": 3.0,
        "val-aux/a/failed": 0,
    }
    assert list(core_scores(plain)) == ["val-core/a/acc/mean@1"]
    more = {**plain, "val-aux/a/format_correct/mean@1": 0.75}
    assert list(core_scores(more)) == [
        "val-core/a/acc/mean@1",
        "val-core/a/reward/mean@1",
        "val-aux/a/format_correct/mean@1",
    ]
