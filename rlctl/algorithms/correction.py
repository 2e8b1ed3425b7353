"""Correct for a sampler that does not compute what the trainer computes: importance weights of the trainer's
probabilities, before the update, over the sampler's.

A weight multiplies the advantage of its token. Every policy loss of rlctl is proportional to the advantage (but for
kl_cov's penalty, which the weight leaves alone), so that is the same as multiplying the loss, and any backend that
takes advantages token by token computes it. Truncation bounds weights from above; masking sets those outside two
bounds to 0. A masked token stays in the denominator of the loss, as in verl and TRL.

Sources: truncated, https://fengyao.notion.site/off-policy-rl; of sequences, and masked,
https://richardli.xyz/rl-collapse; masked by token (IcePop), https://arxiv.org/abs/2510.18855.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from rlctl.step_report import Correction
from rlctl.types import LogProbs, TrainRow

Values = npt.NDArray[np.float64]

LOG_LIMIT = 20.0
"""Bound of a weight's log, as in verl: exp(20) is still finite in float32."""


@dataclass(frozen=True, slots=True)
class CorrectionSpec:
    """`low` is the least weight that is not masked; truncation has no lower bound."""

    level: Literal["token", "sequence"]
    mode: Literal["truncate", "mask"]
    combine: Literal["product", "geometric"]
    """How the ratios of a completion's tokens make its weight."""
    high: float
    low: float


def corrected(
    batches: Sequence[Sequence[TrainRow]], spec: CorrectionSpec | None
) -> tuple[list[list[TrainRow]], Correction | None]:
    """The rows with weighed advantages, and how far the sampler was off; without a spec as they were.

    None in place of the figures where rows have not been scored by the trainer.
    """
    rows = [row for batch in batches for row in batch if row.trained_tokens]
    if not rows or any(row.old_logprobs is None for row in rows):
        return [list(batch) for batch in batches], None
    logs = np.concatenate([_log_ratios(row) for row in rows])
    figures = Correction(len(logs), float(-logs.sum()), float((_bounded_exp(logs) - 1 - logs).sum()))
    if spec is None:
        return [list(batch) for batch in batches], figures
    weights = np.concatenate([raw_weights(row, spec) for row in rows])
    bounded = [[_weighed(row, spec) for row in batch] for batch in batches]
    return bounded, replace(
        figures,
        weight_sum=float(weights.sum()),
        weight_min=float(weights.min()),
        weight_max=float(weights.max()),
        outside=int(_outside(weights, spec).sum()),
    )


def _log_ratios(row: TrainRow) -> Values:
    """[trained tokens] log trainer - log sampler."""
    assert row.old_logprobs is not None
    return row.written(row.old_logprobs).astype(np.float64) - row.written(row.rollout_logprobs)


def _bounded_exp(logs: Values) -> Values:
    return np.exp(np.clip(logs, -LOG_LIMIT, LOG_LIMIT))


def raw_weights(row: TrainRow, spec: CorrectionSpec) -> Values:
    """[trained tokens] trainer's over sampler's probability of each token, or of the completion at every one.

    Of a completion the whole is bounded, not each token: 30 nats up and 30 down are none.
    """
    logs = _log_ratios(row)
    if spec.level == "sequence" and len(logs):
        logs = np.full(len(logs), logs.sum() if spec.combine == "product" else logs.mean())
    return _bounded_exp(logs)


def _outside(weights: Values, spec: CorrectionSpec) -> npt.NDArray[np.bool_]:
    above: npt.NDArray[np.bool_] = weights > spec.high
    return above if spec.mode == "truncate" else above | (weights < spec.low)


def bounded_weights(row: TrainRow, spec: CorrectionSpec) -> LogProbs:
    weights = raw_weights(row, spec)
    if spec.mode == "truncate":
        return np.minimum(weights, spec.high).astype(np.float32)
    return np.where(_outside(weights, spec), 0.0, weights).astype(np.float32)


def _weighed(row: TrainRow, spec: CorrectionSpec) -> TrainRow:
    if not row.trained_tokens:
        return replace(row, token_advantages=row.advantages)
    return replace(row, token_advantages=row.advantages * row.spread(bounded_weights(row, spec)))
