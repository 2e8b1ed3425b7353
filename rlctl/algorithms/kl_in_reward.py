"""KL off the reward: how large it is at each token, and how its weight is steered.

The weight is steered after each step, by what was measured in it, so that KL comes to a target: the proportional
controller of https://arxiv.org/abs/1909.08593, section 2.2, as verl has it. It is the one number of an algorithm that
goes from step to step, and so is in a run's checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlctl.step_report import KlInReward
from rlctl.types import KlEstimator, TrainRow

Values = npt.NDArray[np.float64]

LOG_RATIO_LIMIT = 20.0
"""Differences of log-probs are clamped to +-20 before exp, as in verl: exp(20) = 5e8 is still finite in float32."""
K3_LIMIT = 10.0
"""k3 is clamped to +-10 after that, as in verl: one outlier token must not own the gradient. The loss takes both."""
MOST_ERROR = 0.2
"""Bound of the relative distance from the target that counts, as in the paper."""


@dataclass(frozen=True, slots=True)
class KlControl:
    """Steers the weight of KL off the reward."""

    target: float
    """Nats a token."""
    horizon: int
    """Completions over which the weight may change by `MOST_ERROR`."""

    def steered(self, coef: float, found: KlInReward) -> float:
        """The weight after a step that had `coef`. What is not finite steers nothing: it would never be mended."""
        kl = found.mean_of_completions
        if kl is None or not math.isfinite(kl):
            return coef
        error = min(max(kl / self.target - 1, -MOST_ERROR), MOST_ERROR)
        return coef * (1 + error * found.completions / self.horizon)


def kl_penalties(row: TrainRow, kind: KlEstimator) -> Values:
    """[trained tokens] estimates of KL(policy || reference) at each token, of the policy before the update."""
    assert row.old_logprobs is not None, "KL in the reward needs the policy's log-probs"
    assert row.ref_logprobs is not None, "KL in the reward needs the reference's log-probs"
    old, ref = (row.written(values).astype(np.float64) for values in (row.old_logprobs, row.ref_logprobs))
    difference = old - ref
    if kind == "k1":
        return difference
    if kind == "k2":
        return np.square(difference) / 2
    if kind == "abs":
        return np.abs(difference)
    bounded = np.clip(difference, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return np.clip(np.exp(-bounded) - 1 + bounded, -K3_LIMIT, K3_LIMIT)
