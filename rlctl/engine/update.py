"""Log-probs and gradients of rows, micro-batch by micro-batch: packing + attention + log-probs + loss.

Used by every trainer that holds the whole model in one process. However the rows are cut, the gradient
is that of one big batch: each token carries its weight in the whole minibatch.

Letters: R rows, T completion tokens of a micro-batch that the policy wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlctl.engine.abandoning import must_go_on, never
from rlctl.engine.logprobs import Backward, Head, loss_backward, token_logprobs
from rlctl.engine.loss import LossTerms, log_ratio, policy_loss, row_means, token_weights
from rlctl.engine.model import Policy
from rlctl.engine.packing import PackedBatch, pack
from rlctl.engine.policy_losses import row_function
from rlctl.types import LogProbs, LossSpec, LossStats, TrainRow


@dataclass(frozen=True, slots=True)
class Compute:
    """How to compute: the policy's temperature, and two limits that change no result beyond rounding."""

    temperature: float
    max_tokens: int
    """Budget of a micro-batch."""
    tile_tokens: int | None
    """Tokens in one tile of logits; None keeps all of them."""
    abandoned: Callable[[], bool] = never
    """Asked before every micro-batch; true ends the call with Abandoned."""

    def head(self, policy: Policy) -> Head:
        return policy.head(temperature=self.temperature, tile_tokens=self.tile_tokens)


def forward_backward(
    policy: Policy, rows: Sequence[TrainRow], *, loss: LossSpec, loss_denominator: float, compute: Compute
) -> LossStats:
    """Add the gradient of the rows' loss to the policy's parameters; see `Backend.forward_backward`."""
    stats = LossStats()
    filled = [row for row in rows if row.trained_tokens]
    for batch in pack(filled, max_tokens=compute.max_tokens):
        must_go_on(compute.abandoned)
        stats += _micro_batch(policy, batch, filled, loss, loss_denominator, compute)
    return stats


def _micro_batch(
    policy: Policy, batch: PackedBatch, rows: Sequence[TrainRow], loss: LossSpec, denominator: float, compute: Compute
) -> LossStats:
    mine = [rows[position] for position in batch.rows]
    tokens = TokenLoss(policy, batch, mine, loss, denominator)
    with policy.packed_hidden(batch) as (hidden_TD, targets_T):
        outcome = loss_backward(hidden_TD.detach(), compute.head(policy), targets_T, tokens.loss, tokens.foresee)
        hidden_TD.backward(outcome.grad_hidden_TD)  # type: ignore[no-untyped-call]
    return micro_batch_stats(policy, batch, mine, outcome)


class TokenLoss:
    """The loss of a micro-batch, with what it needs to know of the tokens, all [T]."""

    def __init__(
        self, policy: Policy, batch: PackedBatch, rows: Sequence[TrainRow], loss: LossSpec, denominator: float
    ) -> None:
        device = policy.device
        row_of_token_T = torch.from_numpy(batch.row_of_token_T).to(device)
        lengths_R = torch.from_numpy(batch.written_lengths_R).to(device)
        self.spec, self.row_of_token, self.lengths = loss, row_of_token_T, lengths_R
        self.advantages = _of_tokens(rows, [row.advantages for row in rows], device)
        self.weights = token_weights(lengths_R, mode=loss.loss_agg_mode, denominator=denominator)[row_of_token_T]
        # Log-probs before the update: as given, or the current ones where none were (one update per batch).
        first_update = all(row.old_logprobs is None for row in rows)
        self.old = None if first_update else _of_tokens(rows, [row.old_logprobs for row in rows], device)
        self.ref = _of_tokens(rows, [row.ref_logprobs for row in rows], device) if loss.kl_coef > 0 else None
        self.selected = (
            _of_tokens(rows, [row.selected for row in rows], device) if rows[0].selected is not None else None
        )
        # Before the first update every ratio is 1, which needs no look at the logits.
        self.row_means = self._row_means(torch.zeros_like(self.advantages)) if first_update else None
        self.foresee = self._foresee if row_function(loss) is not None and not first_update else None

    def _foresee(self, logprobs_T: Tensor) -> None:
        assert self.old is not None
        self.row_means = self._row_means(log_ratio(logprobs_T, self.old))

    def _row_means(self, log_ratio_T: Tensor) -> Tensor | None:
        return row_means(
            log_ratio_T,
            advantages_T=self.advantages,
            row_of_token_T=self.row_of_token,
            lengths_R=self.lengths,
            spec=self.spec,
        )

    def loss(self, part: slice, logprobs_t: Tensor, entropy_t: Tensor) -> tuple[Tensor, LossTerms]:
        """The loss of those tokens, and its terms."""
        terms = policy_loss(
            logprobs_t,
            old_T=logprobs_t.detach() if self.old is None else self.old[part],
            advantages_T=self.advantages[part],
            weights_T=self.weights[part],
            spec=self.spec,
            ref_T=None if self.ref is None else self.ref[part],
            entropy_T=entropy_t if self.spec.entropy_coeff > 0 else None,
            row_mean_T=None if self.row_means is None else self.row_means[part],
            selected_T=None if self.selected is None else self.selected[part],
        )
        return terms.total, terms


def _of_tokens(rows: Sequence[TrainRow], values: Sequence[npt.NDArray[Any] | None], device: torch.device) -> Tensor:
    """The values of the tokens that the policy wrote: [R] of [C] -> [T]."""
    assert all(part is not None for part in values), "values are missing on some rows"
    parts = [row.written(part) for row, part in zip(rows, values, strict=True) if part is not None]
    return torch.from_numpy(np.concatenate(parts)).to(device)


def micro_batch_stats(
    policy: Policy, batch: PackedBatch, rows: Sequence[TrainRow], outcome: Backward[LossTerms]
) -> LossStats:
    """What a micro-batch did, as sums."""
    tokens = len(batch.targets_T)
    logprobs_T = outcome.logprobs_T
    rollout_T = _of_tokens(rows, [row.rollout_logprobs for row in rows], logprobs_T.device)
    gap_T = (rollout_T.exp() - logprobs_T.exp()).abs()
    ratio_T = torch.cat([terms.ratio_T for terms in outcome.losses])
    return LossStats(
        loss=sum(float(terms.total.detach()) for terms in outcome.losses),
        pg_loss=sum(float(terms.pg) for terms in outcome.losses),
        kl_loss=sum(float(terms.kl) for terms in outcome.losses),
        tokens=tokens,
        rows=len(rows),
        entropy_sum=float(outcome.entropy_T.sum()),
        ppo_kl_sum=float(-ratio_T.log().sum()),
        clipped_tokens=sum(int(terms.clipped_T.sum()) for terms in outcome.losses),
        max_ratio_deviation=float((ratio_T - 1).abs().max()),
        rollout_probs_diff_sum=float(gap_T.sum()),
        rollout_probs_diff_max=float(gap_T.max()),
        tokens_delivered=sum(len(row.prompt_ids) + len(row.completion_ids) for row in rows),
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
    """Log-probs of the completion tokens of each row, 0 for those that the policy did not write: [R] rows -> [R] of
    [C], float32 nats."""
    result = [np.zeros(len(row.completion_ids), dtype=np.float32) for row in rows]
    filled = [position for position, row in enumerate(rows) if row.trained_tokens]
    for batch in pack([rows[position] for position in filled], max_tokens=compute.max_tokens):
        must_go_on(compute.abandoned)
        with policy.packed_hidden(batch) as (hidden_TD, targets_T):
            logprobs_T = token_logprobs(hidden_TD, compute.head(policy), targets_T)
        put_by_row(result, logprobs_T.cpu().numpy(), rows, [filled[position] for position in batch.rows])
    return result


def put_by_row(result: list[LogProbs], values_T: LogProbs, rows: Sequence[TrainRow], places: Sequence[int]) -> None:
    """Write the values of a micro-batch's tokens, whose rows stand at those places, where they belong in [R] of [C]."""
    ends = np.cumsum([rows[place].trained_tokens for place in places])[:-1]
    for place, part in zip(places, np.split(values_T, ends), strict=True):
        mask = rows[place].policy_mask
        result[place][slice(None) if mask is None else mask] = part
