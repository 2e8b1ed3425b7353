"""The weight of KL off the reward, steered to a target, by hand."""

from __future__ import annotations

import math

import pytest

from rlctl.algorithms.kl_in_reward import KlControl
from rlctl.step_report import KlInReward


def found(kl: float, *, completions: int = 8, coef: float = 0.1) -> KlInReward:
    return KlInReward(coef=coef, token_sum=99.0, tokens=1, mean_sum=kl * completions, completions=completions)


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        # Target 0.1, 8 completions of a horizon of 80: the relative error, at most a fifth, times a tenth.
        (0.1, 0.1),
        (0.11, 0.1 * 1.01),
        (0.09, 0.1 * 0.99),
        (5.0, 0.1 * 1.02),
        (0.0, 0.1 * 0.98),
        (-3.0, 0.1 * 0.98),
    ],
)
def test_the_weight_moves_by_the_relative_error_and_at_most_a_fifth_of_it(kl: float, expected: float) -> None:
    assert KlControl(0.1, 80).steered(0.1, found(kl)) == pytest.approx(expected)


def test_a_horizon_of_completions_at_the_bound_changes_the_weight_by_a_fifth() -> None:
    assert KlControl(0.1, 80).steered(0.1, found(9.0, completions=80)) == pytest.approx(0.12)


@pytest.mark.parametrize("kl", [math.nan, math.inf])
def test_kl_that_is_not_finite_steers_nothing(kl: float) -> None:
    assert KlControl(0.1, 80).steered(0.1, found(kl)) == 0.1


def test_a_step_that_compared_nothing_steers_nothing() -> None:
    assert KlControl(0.1, 80).steered(0.1, found(0.0, completions=0)) == 0.1
