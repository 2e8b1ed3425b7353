"""Log-probs and gradients of rows, micro-batch by micro-batch: packing + attention + log-probs + loss.

Used by every trainer that holds the whole model in one process. However the rows are cut, the gradient
is that of one big batch: each token carries its weight in the whole minibatch.

Letters: R rows, T completion tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlctl.engine.loss import LossTerms, policy_loss, token_weights
from rlctl.engine.model import Policy
from rlctl.engine.packing import PackedBatch, pack
from rlctl.types import LogProbs, LossSpec, LossStats, TrainRow


@dataclass(frozen=True, slots=True)
class Compute:
    """How to compute: the policy's temperature, and two limits that change no result beyond rounding."""

    temperature: float
    max_tokens: int
    """Budget of a micro-batch."""
    tile_tokens: int | None
    """Tokens in one tile of logits; None keeps all of them."""


def forward_backward(
    policy: Policy, rows: Sequence[TrainRow], *, loss: LossSpec, loss_denominator: float, compute: Compute
) -> LossStats:
    """Add the gradient of the rows' loss to the policy's parameters; see `Backend.forward_backward`."""
    stats = LossStats()
    filled = [row for row in rows if len(row.completion_ids)]
    for batch in pack(filled, max_tokens=compute.max_tokens):
        stats += _micro_batch(policy, batch, filled, loss, loss_denominator, compute)
    return stats


def _micro_batch(
    policy: Policy, batch: PackedBatch, rows: Sequence[TrainRow], loss: LossSpec, denominator: float, compute: Compute
) -> LossStats:
    mine = [rows[position] for position in batch.rows]
    logprobs_T, entropy_T = policy.packed_logprobs(
        batch, temperature=compute.temperature, tile_tokens=compute.tile_tokens
    )
    device = policy.device
    row_of_token_T = torch.from_numpy(batch.row_of_token_T).to(device)
    lengths_R = torch.from_numpy(batch.completion_lengths_R).to(device)
    advantages_R = torch.tensor([row.advantage for row in mine], device=device)
    weights_R = token_weights(lengths_R, mode=loss.loss_agg_mode, denominator=denominator)
    terms = policy_loss(
        logprobs_T,
        old_T=_old(mine, logprobs_T),
        advantages_T=advantages_R[row_of_token_T],
        weights_T=weights_R[row_of_token_T],
        spec=loss,
        ref_T=_joined([row.ref_logprobs for row in mine], device) if loss.kl_coef > 0 else None,
        entropy_T=entropy_T if loss.entropy_coeff > 0 else None,
    )
    terms.total.backward()  # type: ignore[no-untyped-call]
    return _stats(policy, batch, mine, terms, logprobs_T.detach(), entropy_T.detach())


def _old(rows: Sequence[TrainRow], logprobs_T: Tensor) -> Tensor:
    """Log-probs before the update: as given, or the current ones where none were (one update per batch)."""
    if all(row.old_logprobs is None for row in rows):
        return logprobs_T.detach()
    return _joined([row.old_logprobs for row in rows], logprobs_T.device)


def _joined(parts: Sequence[LogProbs | None], device: torch.device) -> Tensor:
    assert all(part is not None for part in parts), "log-probs are missing on some rows"
    return torch.from_numpy(np.concatenate([part for part in parts if part is not None])).to(device)


def _stats(
    policy: Policy,
    batch: PackedBatch,
    rows: Sequence[TrainRow],
    terms: LossTerms,
    logprobs_T: Tensor,
    entropy_T: Tensor,
) -> LossStats:
    tokens = len(batch.targets_T)
    rollout_T = _joined([row.rollout_logprobs for row in rows], logprobs_T.device)
    gap_T = (rollout_T.exp() - logprobs_T.exp()).abs()
    return LossStats(
        loss=float(terms.total.detach()),
        pg_loss=float(terms.pg),
        kl_loss=float(terms.kl),
        tokens=tokens,
        rows=len(rows),
        entropy_sum=float(entropy_T.sum()),
        ppo_kl_sum=float(-terms.ratio_T.log().sum()),
        clipped_tokens=int(terms.clipped_T.sum()),
        max_ratio_deviation=float((terms.ratio_T - 1).abs().max()),
        rollout_probs_diff_sum=float(gap_T.sum()),
        rollout_probs_diff_max=float(gap_T.max()),
        tokens_delivered=sum(len(row.prompt_ids) for row in rows) + tokens,
        tokens_computed=len(batch.ids_S),
        flops=_train_flops(policy, batch),
    )


def _train_flops(policy: Policy, batch: PackedBatch) -> float:
    if policy.shape is None:
        return float("nan")
    return policy.shape.train_flops(
        tokens=len(batch.ids_S), predicted=len(batch.targets_T), pairs=batch.attention_pairs
    )


@torch.no_grad()
def log_probs(policy: Policy, rows: Sequence[TrainRow], *, compute: Compute) -> list[LogProbs]:
    """Log-probs of the completion tokens of each row: [R] rows -> [R] of [C], float32 nats."""
    result = [np.zeros(0, dtype=np.float32) for _ in rows]
    filled = [position for position, row in enumerate(rows) if len(row.completion_ids)]
    for batch in pack([rows[position] for position in filled], max_tokens=compute.max_tokens):
        logprobs_T, _ = policy.packed_logprobs(batch, temperature=compute.temperature, tile_tokens=compute.tile_tokens)
        ends = np.cumsum(batch.completion_lengths_R)[:-1]
        for position, part in zip(batch.rows, np.split(logprobs_T.cpu().numpy(), ends), strict=True):
            result[filled[position]] = part.copy()
    return result
