from __future__ import annotations

import numpy as np
import pytest

from rlctl.engine.packing import pack
from rlctl.types import TrainRow


def row(prompt: list[int], completion: list[int]) -> TrainRow:
    return TrainRow(
        np.array(prompt, np.int32), np.array(completion, np.int32), 1.0, np.zeros(len(completion), np.float32)
    )


def test_a_prompt_stands_once_and_completions_continue_its_positions() -> None:
    (batch,) = pack([row([1, 2], [3]), row([1, 2], [4, 5]), row([9], [6])], max_tokens=100)
    by_row = {r: batch.targets_T[batch.row_of_token_T == i].tolist() for i, r in enumerate(batch.rows)}
    assert by_row == {0: [3], 1: [4, 5], 2: [6]}
    assert sorted(batch.ids_S.tolist()) == [1, 2, 3, 4, 5, 6, 9]
    assert dict(zip(batch.ids_S.tolist(), batch.positions_S.tolist(), strict=True)) == {
        1: 0,
        2: 1,
        3: 2,
        4: 2,
        5: 3,
        9: 0,
        6: 1,
    }


def test_a_token_is_predicted_by_the_one_before_it_in_its_own_row() -> None:
    (batch,) = pack([row([1, 2], [3, 4]), row([1, 2], [5])], max_tokens=100)
    before = {int(t): int(batch.ids_S[p]) for t, p in zip(batch.targets_T, batch.predictors_T, strict=True)}
    assert before == {3: 2, 4: 3, 5: 2}


def test_batches_keep_the_budget_and_every_row_exactly_once() -> None:
    rows = [row([i % 3, 7], list(range(1 + i % 5))) for i in range(20)]
    batches = pack(rows, max_tokens=12)
    assert sorted(r for batch in batches for r in batch.rows) == list(range(20))
    assert all(len(batch.ids_S) <= 12 for batch in batches)


def test_a_row_longer_than_the_budget_stands_alone() -> None:
    batches = pack([row([1], list(range(50))), row([1], [2])], max_tokens=10)
    assert sorted(len(batch.ids_S) for batch in batches) == [2, 51]


@pytest.mark.parametrize(("prompt", "own"), [(3, [2, 4]), (1, [1])])
def test_attention_pairs_are_those_computed(prompt: int, own: list[int]) -> None:
    (batch,) = pack([row([1] * prompt, [2] * length) for length in own], max_tokens=100)
    by_hand = sum(range(1, prompt + 1)) + sum(prompt + i + 1 for length in own for i in range(length))
    assert batch.attention_pairs == by_hand
