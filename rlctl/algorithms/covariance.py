"""Choose the tokens whose log-prob and advantage vary together the most, which clip_cov and kl_cov treat apart.

The covariance of a token is (A - mean A) (log p - mean log p), with means over the tokens of the whole minibatch and p
of the current policy; so the minibatch is scored before each update, and the choice is made here, where all of it is
known, and not in a micro-batch. A is the advantage that the estimator gave: what corrects for the sampler weighs the
loss of the chosen, and does not choose.

Source: https://arxiv.org/abs/2505.22617, equations 10 to 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from rlctl.backends.base import AnyBackend
from rlctl.seeds import update_seed
from rlctl.types import LogProbs, LossSpec, TrainRow

Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SelectionSpec:
    """`ratio` is the share of the minibatch's tokens; clip_cov draws from covariances between `low` and `high`."""

    kind: Literal["clip_cov", "kl_cov"]
    ratio: float
    low: float = 0.0
    high: float = 0.0


async def with_selection(
    batch: Sequence[TrainRow],
    *,
    unweighed: Sequence[TrainRow],
    number: int,
    step: int,
    backend: AnyBackend,
    loss: LossSpec,
    spec: SelectionSpec | None,
    seed: int,
) -> list[TrainRow]:
    """The rows of update `number` (from 0) with their tokens chosen; as they are without a spec.

    `unweighed` are the same rows before the sampler's probabilities were corrected.
    """
    if spec is None:
        return list(batch)
    # Before its first update the policy is the one that was scored.
    current = [row.old_logprobs for row in batch] if number == 0 else await backend.log_probs(batch)
    draw = np.random.Generator(np.random.Philox(update_seed(seed, step, number)))
    chosen = selected(unweighed, [c for c in current if c is not None], loss=loss, spec=spec, draw=draw)
    ends = np.cumsum([row.trained_tokens for row in batch])[:-1]
    return [replace(row, selected=row.spread(part)) for row, part in zip(batch, np.split(chosen, ends), strict=True)]


def selected(
    batch: Sequence[TrainRow],
    current: Sequence[LogProbs],
    *,
    loss: LossSpec,
    spec: SelectionSpec,
    draw: np.random.Generator,
) -> Mask:
    """[trained tokens of the minibatch] whether each is chosen; `current` are log-probs, [R] of [C]."""
    logp = np.concatenate([row.written(c) for row, c in zip(batch, current, strict=True)]).astype(np.float64)
    advantages = np.concatenate([row.written(row.advantages) for row in batch]).astype(np.float64)
    chosen = np.zeros(len(logp), dtype=np.bool_)
    if not len(logp):
        return chosen
    covariance = (advantages - advantages.mean()) * (logp - logp.mean())
    count = max(1, int(spec.ratio * len(logp)))
    if spec.kind == "kl_cov":
        chosen[np.argsort(-covariance, kind="stable")[:count]] = True
        return chosen
    between = (covariance > spec.low) & (covariance < spec.high)
    candidates = np.flatnonzero(between & ~_clipped(batch, logp, advantages, loss))
    chosen[draw.permutation(candidates)[:count]] = True
    return chosen


def _clipped(batch: Sequence[TrainRow], logp: Values, advantages: Values, loss: LossSpec) -> Mask:
    """Tokens whose gradient the clipped loss cuts anyway."""
    old = np.concatenate([row.written(row.old_logprobs) for row in batch if row.old_logprobs is not None])
    ratio = np.exp(np.clip(logp - old, -20.0, 20.0))
    bounded = np.clip(ratio, 1 - loss.clip_ratio_low, 1 + loss.clip_ratio_high)
    cut: Mask = -advantages * bounded > -advantages * ratio
    return cut
