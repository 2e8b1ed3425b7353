"""The loss of one micro-batch, token by token, as a weighted sum: a policy loss, KL and an entropy bonus.

The policy losses are in `policy_losses.py`; clamps follow verl. Which tokens count how much is in `token_weights`: with
the denominator of the whole minibatch, weighted sums of any cut into micro-batches add up to the same loss.

Letters: T completion tokens of the micro-batch, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlctl.algorithms.kl_in_reward import K3_LIMIT, LOG_RATIO_LIMIT
from rlctl.engine.policy_losses import Tokens, loss_function, row_function
from rlctl.types import KlEstimator, LossAggMode, LossSpec


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
    row_mean_T: Tensor | None = None,
    selected_T: Tensor | None = None,
) -> LossTerms:
    """Policy loss + kl_coef * KL - entropy_coeff * entropy, each summed with `weights_T`.

    `row_mean_T` is what `row_means` gave, for a loss that needs it; `selected_T` the tokens that the driver chose.
    """
    tokens = Tokens(logprobs_T, log_ratio(logprobs_T, old_T), advantages_T, row_mean_T, selected_T)
    pg_T, clipped_T = loss_function(spec)(tokens, spec)
    pg = (weights_T * pg_T).sum()
    kl = torch.zeros_like(pg)
    if spec.kl_coef > 0:
        assert ref_T is not None, "kl_coef > 0 needs reference log-probs"
        kl = spec.kl_coef * (weights_T * kl_divergence(logprobs_T, ref_T, spec.kl_estimator)).sum()
    total = pg + kl
    if spec.entropy_coeff > 0:
        assert entropy_T is not None, "entropy_coeff > 0 needs the entropy"
        total = total - spec.entropy_coeff * (weights_T * entropy_T).sum()
    return LossTerms(total, pg.detach(), kl.detach(), tokens.ratio.detach(), clipped_T)


def log_ratio(logprobs_T: Tensor, old_T: Tensor) -> Tensor:
    return (logprobs_T - old_T).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


@torch.no_grad()
def row_means(
    log_ratio_T: Tensor, *, advantages_T: Tensor, row_of_token_T: Tensor, lengths_R: Tensor, spec: LossSpec
) -> Tensor | None:
    """For each token, the mean over its row of what the loss has to know of whole rows; None where it needs nothing.

    The tokens of every row must be there.
    """
    function = row_function(spec)
    if function is None:
        return None
    values_T = function(log_ratio_T, advantages_T, spec)
    sums_R = torch.zeros(len(lengths_R), dtype=values_T.dtype, device=values_T.device)
    sums_R.index_add_(0, row_of_token_T, values_T)
    return (sums_R / lengths_R.clamp(min=1))[row_of_token_T]


def kl_divergence(logprobs_T: Tensor, ref_T: Tensor, estimator: KlEstimator) -> Tensor:
    """Estimate of KL(policy || reference) at each token: [T] -> [T].

    With d = log p - log p_ref: k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d, abs = |d|, each differentiated as it stands.
    The expected gradient of k1 is 0, and that of k3 is not KL's; k2's, d times the gradient of log p, is. So k1+ and
    k3+ have the value of k1 and k3 and the gradient of k2, as in verl. Only k3, which has an exponential, is bounded:
    a bound takes the gradient from the tokens that have drifted the most.
    Source: http://joschu.net/blog/kl-approx.html.
    """
    if estimator in ("k1+", "k3+"):
        slope = kl_divergence(logprobs_T, ref_T, "k2")
        value = kl_divergence(logprobs_T, ref_T, "k1" if estimator == "k1+" else "k3")
        return value.detach() + slope - slope.detach()
    difference = logprobs_T - ref_T
    if estimator == "k1":
        return difference
    if estimator == "abs":
        return difference.abs()
    if estimator == "k2":
        return difference.square() / 2
    bounded = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (torch.exp(-bounded) - 1 + bounded).clamp(-K3_LIMIT, K3_LIMIT)


def token_weights(lengths_R: Tensor, *, mode: LossAggMode, denominator: float) -> Tensor:
    """[R] -> the weight of each token of each row, so that the weighted sum over a minibatch is its loss.

    seq-mean-token-mean divides by the row's own length first; the other modes differ only in the denominator.
    """
    if mode == "seq-mean-token-mean":
        return 1.0 / (lengths_R.clamp(min=1) * denominator)
    return torch.full(lengths_R.shape, 1.0 / denominator, device=lengths_R.device)
