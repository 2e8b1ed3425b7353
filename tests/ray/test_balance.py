"""Rows over ranks by unique tokens, groups whole."""

from __future__ import annotations

import numpy as np

from rlctl.backends.ray.balance import balance
from rlctl.types import TrainRow


def row(prompt: int, *, length: int, prompt_length: int = 4) -> TrainRow:
    ids = np.full(prompt_length, prompt, np.int32)
    return TrainRow(ids, np.zeros(length, np.int32), 0.0, np.zeros(length, np.float32))


def test_one_rank_has_all_rows_in_their_order() -> None:
    assert balance([row(1, length=2), row(2, length=9), row(1, length=3)], ranks=1) == [[0, 1, 2]]


def test_the_rows_of_a_prompt_stay_together() -> None:
    rows = [row(i % 3, length=5) for i in range(12)]
    for share in balance(rows, ranks=2):
        prompts = {int(rows[i].prompt_ids[0]) for i in share}
        assert len(share) == 4 * len(prompts)


def test_loads_are_even_by_tokens_with_each_prompt_once() -> None:
    # Unique tokens: 4 + 2 x 10 = 24, 4 + 12 = 16, 4 + 4 = 8; naively the first would count 28.
    rows = [row(1, length=10), row(1, length=10), row(2, length=12), row(3, length=4)]
    assert balance(rows, ranks=2) == [[0, 1], [2, 3]]


def test_fewer_groups_than_ranks_leave_ranks_without_rows() -> None:
    assert balance([row(1, length=3), row(1, length=4)], ranks=3) == [[0, 1], [], []]


def test_no_rows_at_all() -> None:
    assert balance([], ranks=2) == [[], []]


def test_every_row_is_somewhere_once_and_no_rank_has_a_third_more_than_it_must() -> None:
    draw = np.random.default_rng(0)
    rows = [row(i, length=int(n)) for i, n in enumerate(draw.integers(1, 60, 200))]
    shares = balance(rows, ranks=7)
    assert sorted(i for share in shares for i in share) == list(range(200))
    loads = [sum(4 + len(rows[i].completion_ids) for i in share) for share in shares]
    assert max(loads) <= 4 / 3 * (sum(loads) / 7)
