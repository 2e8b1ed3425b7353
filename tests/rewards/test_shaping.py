"""Penalties for length and ranks, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlctl.rewards.shaping import ShapingSpec, group_length_rewards, ranks, shaped, soft_punishment
from rlctl.types import Completion, Problem, Prompt, Rollout


def spec(**changes: Any) -> ShapingSpec:
    return ShapingSpec(max_response_length=100, **changes)


def group(*pairs: tuple[float | None, int]) -> list[Rollout]:
    """Completions with those rewards and lengths."""
    prompt = Prompt(np.zeros(1, np.int32), 0)
    return [
        Rollout(
            Problem("1", "", ""), prompt, Completion(np.zeros(n, np.int32), np.zeros(n, np.float32), "stop"), "", reward
        )
        for reward, n in pairs
    ]


@pytest.mark.parametrize(("length", "expected"), [(0, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0)])
def test_the_soft_punishment_falls_over_the_buffer(length: int, expected: float) -> None:
    buffer = spec(overlong_buffer_len=20, overlong_penalty_factor=0.5)
    assert soft_punishment(length, buffer) == expected
    assert [r.shaping for r in shaped(group((1.0, length)), buffer)] == [expected / 2]


def test_each_penalty_keeps_its_weight_beside_its_value() -> None:
    both = spec(overlong_buffer_len=20, overlong_penalty_factor=2.0, length_penalty=0.5)
    (found,) = shaped(group((1.0, 90)), both)
    assert found.length_parts == ((0.5, -0.9), (2.0, -0.5))
    assert found.reward == pytest.approx(1.0 - 0.45 - 1.0)


def test_the_linear_penalty_is_a_share_of_the_limit() -> None:
    found = shaped(group((1.0, 50), (0.0, 10)), spec(length_penalty=0.5))
    assert [(r.reward, r.shaping) for r in found] == [(0.75, -0.25), (-0.05, -0.05)]


def test_the_groups_form_rewards_short_right_answers_and_no_wrong_ones() -> None:
    # Lengths 10, 20, 30: 0.5, 0, -0.5; wrong answers get no more than 0.
    assert group_length_rewards([1.0, 1.0, 0.0], [10, 20, 30]) == [0.5, 0.0, -0.5]
    assert group_length_rewards([0.0, 1.0, 1.0], [10, 20, 30]) == [0.0, 0.0, -0.5]
    assert group_length_rewards([0.0, 0.0], [10, 30]) == [0.0, -0.5]
    assert group_length_rewards([1.0, 0.0], [7, 7]) == [0.0, 0.0]


def test_equal_rewards_share_a_rank() -> None:
    assert ranks([0.1, 5.0, 0.1, 0.2]) == [1 / 6, 1.0, 1 / 6, 2 / 3]
    assert ranks([3.0, 3.0]) == [0.5, 0.5]
    assert ranks([3.0]) == [0.5]


def test_ranks_come_before_lengths_and_failed_rewards_stay_out() -> None:
    found = shaped(group((9.0, 100), (None, 100), (0.5, 50)), spec(rank_in_group=True, length_penalty=1.0))
    assert [r.reward for r in found] == [0.0, None, -0.5]


def test_nothing_is_touched_when_all_is_off() -> None:
    rollouts = group((1.0, 5), (None, 3))
    assert spec().is_off
    assert shaped(rollouts, spec()) == rollouts
