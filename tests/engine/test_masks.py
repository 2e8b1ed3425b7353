"""Tokens that an environment wrote: seen by what follows, and neither trained on nor counted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rlctl import dumps, grpo
from rlctl.algorithms import losses
from rlctl.algorithms.comparing import kl_penalties
from rlctl.algorithms.correction import CorrectionSpec, corrected
from rlctl.algorithms.covariance import SelectionSpec, with_selection
from rlctl.engine import update
from rlctl.engine.model import wrap
from rlctl.engine.packing import pack
from rlctl.step_report import Refused
from rlctl.types import LossAggMode, LossStats, TrainRow
from tests import defaults
from tests.engine.test_exactness import family, naive_padded_loss, plain_logprobs, some_rows

OTHERS = 999.0
"""A log-prob that no token has: it would blow up whatever read it."""


def masked(rows: list[TrainRow]) -> list[TrainRow]:
    """The rows with every third token not the policy's, and the first row all its own."""
    masks = [np.arange(len(row.completion_ids)) % 3 != 1 for row in rows]
    return [rows[0], *(replace(row, policy_mask=mask) for row, mask in zip(rows[1:], masks[1:], strict=True))]


def poisoned(row: TrainRow, values: np.ndarray) -> np.ndarray:
    """The values with nonsense where the policy did not write."""
    return values if row.policy_mask is None else np.where(row.policy_mask, values, np.float32(OTHERS))


def test_targets_are_the_tokens_that_the_policy_wrote() -> None:
    prompt, completion = np.array([1, 2], np.int32), np.array([3, 4, 5, 6], np.int32)
    mask = np.array([True, False, False, True])
    row = TrainRow(prompt, completion, 1.0, np.zeros(4, np.float32), policy_mask=mask)
    (batch,) = pack([row, replace(row, policy_mask=None)], max_tokens=100)
    assert batch.ids_S.tolist() == [1, 2, 3, 4, 5, 6, 3, 4, 5, 6]
    assert batch.targets_T.tolist() == [3, 6, 3, 4, 5, 6]
    # The first is predicted by the prompt's last token, the last by the environment's.
    assert batch.ids_S[batch.predictors_T].tolist() == [2, 5, 2, 3, 4, 5]
    assert batch.row_of_token_T.tolist() == [0, 0, 1, 1, 1, 1]
    assert (batch.completion_lengths_R.tolist(), batch.written_lengths_R.tolist()) == ([4, 4], [2, 4])


def test_logprobs_of_masked_tokens_are_0_and_the_others_see_them(shared: Path) -> None:
    model = family(shared, "Qwen3-0.6B")
    rows = masked(some_rows(512))
    for row, mine in zip(
        rows, update.log_probs(wrap(model), rows, compute=defaults.compute(max_tokens=40)), strict=True
    ):
        with torch.no_grad():
            whole = plain_logprobs(model, row).numpy()
        expected = whole if row.policy_mask is None else whole * row.policy_mask
        np.testing.assert_allclose(mine, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize("name", ["Llama-3.2-1B-Instruct", "Qwen3-0.6B"])
def test_gradient_with_masks_equals_a_naive_padded_one(shared: Path, name: str, mode: LossAggMode) -> None:
    model = family(shared, name)
    draw = np.random.default_rng(1)
    loss = defaults.loss(kl_coef=0.05, entropy_coeff=0.01, loss_agg_mode=mode)
    given = [
        replace(row, rollout_logprobs=lp).with_old(lp + draw.normal(0, 0.3, len(lp)).astype(np.float32))
        for row in masked(some_rows(512))
        for lp in [plain_logprobs(model, row, 0.8).detach().numpy()]
    ]
    given = [row.with_reference(row.rollout_logprobs - 0.2) for row in given]
    expected = naive_masked_loss(model, given, mode)
    expected.backward()  # type: ignore[no-untyped-call]
    wanted = {key: torch.clone(p.grad) for key, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    rows = [with_nonsense(row) for row in given]
    compute = defaults.compute(temperature=0.8, max_tokens=40, tile_tokens=4)
    denominator = grpo.loss_denominator(rows, loss)
    stats = update.forward_backward(wrap(model), rows, loss=loss, loss_denominator=denominator, compute=compute)
    assert stats.loss == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    assert stats.tokens == sum(int(row.policy_mask.sum()) if row.policy_mask is not None else 4 for row in rows)
    assert stats.tokens_delivered == sum(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    assert stats.rollout_probs_diff_max < 1e-5
    assert stats.max_ratio_deviation is not None
    assert stats.max_ratio_deviation < 10
    for key, p in model.named_parameters():
        assert p.grad is not None
        assert (p.grad - wanted[key]).abs().max() <= 1e-4 * wanted[key].abs().max(), key


def with_nonsense(row: TrainRow) -> TrainRow:
    assert row.old_logprobs is not None
    assert row.ref_logprobs is not None
    return replace(
        row,
        rollout_logprobs=poisoned(row, row.rollout_logprobs),
        old_logprobs=poisoned(row, row.old_logprobs),
        ref_logprobs=poisoned(row, row.ref_logprobs),
    )


def naive_masked_loss(model: torch.nn.Module, rows: list[TrainRow], mode: LossAggMode) -> torch.Tensor:
    """A sum of the padded token mean over single rows, weighted as the mode has it, by definition."""
    loss = defaults.loss(kl_coef=0.05, entropy_coeff=0.01)
    written = [len(r.completion_ids) if r.policy_mask is None else int(r.policy_mask.sum()) for r in rows]
    if mode == "token-mean":
        return naive_padded_loss(model, rows, loss, temperature=0.8)
    means = [naive_padded_loss(model, [row], loss, temperature=0.8) for row in rows]
    weights = [1.0 if mode == "seq-mean-token-mean" else float(n) for n in written]
    return torch.stack([w * m for w, m in zip(weights, means, strict=True)]).sum() / len(rows)


def test_a_row_of_which_the_policy_wrote_nothing_changes_nothing(shared: Path) -> None:
    model = family(shared, "Llama-3.2-1B-Instruct")
    row = some_rows(512)[0]
    none = replace(row, policy_mask=np.zeros(len(row.completion_ids), dtype=bool))
    loss, compute = defaults.loss(), defaults.compute(max_tokens=40)
    assert grpo.loss_denominator([none], loss) == 1.0
    alone = update.forward_backward(wrap(model), [none], loss=loss, loss_denominator=1.0, compute=compute)
    assert alone == LossStats()
    assert all(p.grad is None for p in model.parameters())
    both, one = (
        update.forward_backward(wrap(model), rows, loss=loss, loss_denominator=4.0, compute=compute)
        for rows in ([none, row], [row])
    )
    assert (both.loss, both.tokens, both.rows) == (one.loss, one.tokens, 1)
    assert [len(lp) for lp in update.log_probs(wrap(model), [none, row], compute=compute)] == [4, 4]


def test_masks_count_in_the_denominator_and_in_the_rollout_gap() -> None:
    ids, mask = np.array([1, 2, 3], np.int32), np.array([True, False, True])
    told, old = np.log([0.5, 1.0, 0.25]).astype(np.float32), np.log([0.4, 0.1, 0.35]).astype(np.float32)
    row = TrainRow(ids, ids, 1.0, told, old, policy_mask=mask)
    assert grpo.loss_denominator([row, replace(row, policy_mask=None)], defaults.loss()) == 2 + 3
    assert grpo.rollout_gap([row], []) == pytest.approx((0.1, 0.1))


def test_a_dump_of_a_refused_update_keeps_the_masks(tmp_path: Path) -> None:
    rows = masked(some_rows(512))
    dumps.write(tmp_path, step=3, refused=Refused(0, rows, 7.0, float("nan"), float("inf")), settings={})
    for row, back in zip(rows, dumps.read(tmp_path).refused.rows, strict=True):
        if row.policy_mask is None:
            assert back.policy_mask is None
        else:
            assert back.policy_mask is not None
            assert back.policy_mask.dtype == bool
            assert back.policy_mask.tolist() == row.policy_mask.tolist()
            assert back.trained_tokens == row.trained_tokens


@pytest.mark.parametrize("name", losses.registry.names())
def test_no_loss_looks_at_what_the_policy_did_not_write(shared: Path, name: str) -> None:
    model = family(shared, "Llama-3.2-1B-Instruct")
    draw = np.random.default_rng(2)
    rows = []
    for row in masked(some_rows(512)):
        old = plain_logprobs(model, row).detach().numpy() + draw.normal(0, 0.3, len(row.completion_ids))
        picked = draw.random(len(row.completion_ids)) < 0.4
        made = replace(row, selected=row.spread(row.written(picked)), ref_logprobs=old.astype(np.float32))
        rows.append(made.with_old(old.astype(np.float32)))
    loss = defaults.loss(policy_loss=name, kl_coef=0.05)
    grads, totals = [], []
    for given in (rows, [with_nonsense(replace(row, selected=_all_of(row))) for row in rows]):
        model.zero_grad()
        compute = defaults.compute(max_tokens=40, tile_tokens=4)
        stats = update.forward_backward(wrap(model), given, loss=loss, loss_denominator=9.0, compute=compute)
        totals.append((stats.loss, stats.tokens, stats.clipped_tokens))
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone())
    assert totals[0] == totals[1]
    assert grads[0].abs().max() > 0
    assert torch.equal(grads[0], grads[1])


def _all_of(row: TrainRow) -> np.ndarray:
    """The selected tokens, and all that the policy did not write."""
    assert row.selected is not None
    return row.selected if row.policy_mask is None else row.selected | ~row.policy_mask


def with_log_probs(told: list[float], old: list[float], mask: list[bool], advantage: float = 1.0) -> TrainRow:
    ids = np.arange(len(told), dtype=np.int32)
    made = (np.log(values).astype(np.float32) for values in (told, old))
    return TrainRow(ids, ids, advantage, *made, policy_mask=np.array(mask))


def test_a_correction_weighs_written_tokens_alone() -> None:
    row = with_log_probs([0.5, 0.9, 0.25], [0.25, 0.001, 0.375], [True, False, True], advantage=2.0)
    for combine, weight in (("product", 0.75), ("geometric", 0.75**0.5)):
        spec = CorrectionSpec("sequence", "truncate", combine, high=2.0, low=0.5)  # type: ignore[arg-type]
        ((done,),), figures = corrected([[row]], spec)
        assert done.token_advantages is not None
        assert done.token_advantages == pytest.approx([2 * weight, 0, 2 * weight])
        assert figures is not None
        assert figures.tokens == 2
    ((done,),), _ = corrected([[row]], CorrectionSpec("token", "truncate", "product", high=2.0, low=0.5))
    assert done.token_advantages == pytest.approx([2 * 0.5, 0, 2 * 1.5])


def test_tokens_are_chosen_among_the_written_ones() -> None:
    # The middle token has by far the largest covariance, and is an environment's.
    row = with_log_probs([0.5] * 4, [0.9, 1.0, 0.1, 0.5], [True, False, True, True], advantage=1.0)
    other = with_log_probs([0.5] * 2, [0.2, 0.8], [True, False], advantage=-1.0)
    spec = SelectionSpec("kl_cov", ratio=0.25)
    batch = asyncio.run(
        with_selection(
            [row, other],
            unweighed=[row, other],
            number=0,
            step=1,
            backend=None,  # type: ignore[arg-type]
            loss=defaults.loss(),
            spec=spec,
            seed=0,
        )
    )
    # log p of the written: log 0.9, 0.1, 0.5 | 0.2; mean advantage 0.5. (A - 0.5)(log p - mean) is largest at the first
    # or where both are far below: 0.5 * (-0.105 + 1.177) = 0.536, and -1.5 * (-1.609 + 1.177) = 0.649.
    assert [r.selected.tolist() for r in batch if r.selected is not None] == [[False] * 4, [True, False]]


def test_kl_in_the_reward_is_taken_off_written_tokens_alone() -> None:
    row = with_log_probs([0.5] * 3, [0.5, 0.9, 0.25], [True, False, True])
    row = row.with_reference(np.log([0.25, 1e-9, 0.25]).astype(np.float32))
    assert kl_penalties(row, "k1") == pytest.approx([np.log(2), 0.0])
