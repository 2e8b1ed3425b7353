"""The policy loss of one micro-batch, token by token, as a weighted sum.

The clipped surrogate is PPO's (https://arxiv.org/abs/1707.06347) with separate bounds below and above
(DAPO, https://arxiv.org/abs/2503.14476) and the dual clip of https://arxiv.org/abs/1912.09729; clamps
follow verl. Which tokens count how much is in `token_weights`: with the denominator of the whole
minibatch, weighted sums of any cut into micro-batches add up to the same loss.

Letters: T completion tokens of the micro-batch, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlctl.types import KlEstimator, LossAggMode, LossSpec

LOG_RATIO_LIMIT = 20.0
"""Differences of log-probs are clamped to +-20 before exp, as in verl: exp(20) = 5e8 is still finite in float32."""
K3_LIMIT = 10.0
"""k3 is clamped to +-10 after that, as in verl: one outlier token must not own the gradient."""


@dataclass(frozen=True, slots=True)
class LossTerms:
    """The loss to differentiate, its parts, and the importance ratio of each token (detached)."""

    total: Tensor
    pg: Tensor
    kl: Tensor
    ratio_T: Tensor
    clipped_T: Tensor


def policy_loss(
    logprobs_T: Tensor,
    *,
    old_T: Tensor,
    advantages_T: Tensor,
    weights_T: Tensor,
    spec: LossSpec,
    ref_T: Tensor | None = None,
    entropy_T: Tensor | None = None,
) -> LossTerms:
    """Clipped surrogate + kl_coef * KL - entropy_coeff * entropy, each summed with `weights_T`."""
    log_ratio_T = (logprobs_T - old_T).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio_T = log_ratio_T.exp()
    pg_T, clipped_T = clipped_surrogate(ratio_T, advantages_T, spec)
    pg = (weights_T * pg_T).sum()
    kl = torch.zeros_like(pg)
    if spec.kl_coef > 0:
        assert ref_T is not None, "kl_coef > 0 needs reference log-probs"
        kl = spec.kl_coef * (weights_T * kl_divergence(logprobs_T, ref_T, spec.kl_estimator)).sum()
    total = pg + kl
    if spec.entropy_coeff > 0:
        assert entropy_T is not None, "entropy_coeff > 0 needs the entropy"
        total = total - spec.entropy_coeff * (weights_T * entropy_T).sum()
    return LossTerms(total, pg.detach(), kl.detach(), ratio_T.detach(), clipped_T)


def clipped_surrogate(ratio_T: Tensor, advantages_T: Tensor, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """(loss [T], whether the clip cut its gradient [T]) of the clipped policy gradient."""
    plain = -advantages_T * ratio_T
    bounded = -advantages_T * ratio_T.clamp(1 - spec.clip_ratio_low, 1 + spec.clip_ratio_high)
    loss_T = torch.maximum(plain, bounded)
    clipped_T = bounded > plain
    if spec.clip_ratio_c is not None:
        ceiling = -advantages_T * spec.clip_ratio_c
        negative = advantages_T < 0
        clipped_T = clipped_T | (negative & (loss_T > ceiling))
        loss_T = torch.where(negative, torch.minimum(loss_T, ceiling), loss_T)
    return loss_T, clipped_T.detach()


def kl_divergence(logprobs_T: Tensor, ref_T: Tensor, estimator: KlEstimator) -> Tensor:
    """Estimate of KL(policy || reference) at each token, differentiated as it stands: [T] -> [T].

    With d = log p - log p_ref: k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d.
    Source: http://joschu.net/blog/kl-approx.html.
    """
    difference = (logprobs_T - ref_T).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    return (torch.exp(-difference) - 1 + difference).clamp(-K3_LIMIT, K3_LIMIT)


def token_weights(lengths_R: Tensor, *, mode: LossAggMode, denominator: float) -> Tensor:
    """[R] -> the weight of each token of each row, so that the weighted sum over a minibatch is its loss.

    seq-mean-token-mean divides by the row's own length first; the other modes differ only in the denominator.
    """
    if mode == "seq-mean-token-mean":
        return 1.0 / (lengths_R.clamp(min=1) * denominator)
    return torch.full(lengths_R.shape, 1.0 / denominator, device=lengths_R.device)
