"""Tokens and FLOPs of a step, by hand."""

from __future__ import annotations

import pytest

from rlctl.perf import ModelShape
from rlctl.planning.work import Lengths, Work, flops_of

WORK = Work(
    prompts=4, samples_per_prompt=3, prompts_per_update=2, updates=2, scored=1, longest_prompt=10, longest_response=5,
    lengths=Lengths(10, 5, "test"),
)  # fmt: skip


def test_a_prompt_counts_once_for_all_of_its_samples() -> None:
    assert WORK.samples == 12
    assert WORK.response_tokens == 60
    assert WORK.unique_tokens == 4 * (10 + 3 * 5)
    # 55 pairs of a prompt with itself; each completion 5 x 10 with it and 15 with itself.
    assert WORK.pairs == 4 * (55 + 3 * (50 + 15))


def test_passes_are_how_often_a_sample_is_trained_on() -> None:
    assert WORK.passes == 1
    twice = Work(4, 3, 2, 4, 1, 10, 5, Lengths(10, 5, "test"))
    assert twice.passes == 2


def test_flops_are_two_a_weight_and_token_forward_and_three_times_that_in_training() -> None:
    shape = ModelShape(body_parameters=1000, head_parameters=500, attention_width=8)
    forward = 2 * 1000 * 100 + 2 * 500 * 60 + 4 * 8 * 1000
    flops = flops_of(WORK, shape)
    assert flops is not None
    assert flops.update == 3 * forward
    assert flops.score == forward
    # The last token of each of the 12 completions is drawn, not computed.
    assert flops.sample == forward - 2 * 1000 * 12
    assert flops_of(WORK, None) is None


@pytest.mark.parametrize(
    ("max_tokens", "ranks", "expected"),
    [
        (1000, 1, (50, 30)),  # both groups of an update: 2 x (10 + 15) tokens, 2 x 15 predicted
        (1000, 2, (25, 15)),  # one group a rank
        (20, 1, (20, 10)),  # the budget
        (8, 1, (15, 5)),  # one row may exceed it
    ],
)
def test_the_largest_micro_batch_is_the_budget_or_what_a_rank_has(
    max_tokens: int, ranks: int, expected: tuple[int, int]
) -> None:
    assert WORK.micro_batch(max_tokens=max_tokens, ranks=ranks) == expected
