"""Every estimator learns, on a policy of one table: the advantages point the right way over many steps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import fmean

import pytest

from rlctl.algorithms import estimators
from rlctl.grpo import grpo_step
from rlctl.rewards import Scored
from rlctl.types import Problem
from tests.algorithms.test_steps import PROBLEMS, Recording, config_of
from tests.fakes import ByteTokenizer


async def says_seven(items: Sequence[tuple[Problem, str]]) -> list[Scored]:
    return [Scored(r, {}, parts=((1.0, r),)) for _, text in items for r in [float("7" in text)]]


@pytest.mark.parametrize("name", estimators.registry.names())
def test_an_estimator_makes_the_rewarded_token_likelier(name: str) -> None:
    backend = Recording()
    config = config_of(algorithm={"adv_estimator": name})

    def step(number: int) -> float:
        report = asyncio.run(
            grpo_step(
                number,
                PROBLEMS,
                backend=backend,
                tokenizer=ByteTokenizer(),
                score=says_seven,
                config=config,
                lr=5.0,
            )
        )
        return fmean(r.reward for r in report.rollouts if r.reward is not None)

    scores = [step(number) for number in range(1, 31)]
    assert fmean(scores[-5:]) > fmean(scores[:5]) + 0.2
