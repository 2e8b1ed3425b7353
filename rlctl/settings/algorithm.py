"""`[algorithm]`: from rewards to the loss."""

from __future__ import annotations

from pydantic import Field, model_validator

from rlctl.settings.block import Block, Count
from rlctl.types import KlEstimator, LossAggMode


class AlgorithmSettings(Block):
    norm_adv_by_std: bool = True
    """Divide advantages by the group's sample standard deviation (n-1, plus 1e-6); false only centres (Dr. GRPO)."""
    clip_ratio_low: float = Field(0.2, ge=0, lt=1)
    """How far below 1 the importance ratio may go before its gradient is cut."""
    clip_ratio_high: float = Field(0.2, ge=0)
    """How far above 1 the importance ratio may go before its gradient is cut."""
    clip_ratio_c: float | None = Field(3.0, gt=1)
    """Dual clip: bound on ratio x |advantage| where the advantage is negative; null is off."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of the KL term against the starting policy; 0 loads no reference model."""
    kl_estimator: KlEstimator = "k3"
    """k1 = log-ratio, k2 = half its square, k3 = exp(-log-ratio) - 1 + log-ratio; each differentiated as it stands."""
    entropy_coeff: float = Field(0.0, ge=0)
    """Weight of the entropy bonus, per token in nats."""
    loss_agg_mode: LossAggMode = "token-mean"
    """How token losses become one number; seq-mean-token-sum-norm divides by rollout.max_response_length (Dr. GRPO)."""
    drop_zero_signal_groups: bool = True
    """Leave groups whose rewards are all equal out of the update, numerator and denominator; they are counted."""
    filter_groups: bool = False
    """Dynamic sampling (DAPO): replace groups whose rewards are all equal by further problems, until the batch is full
    or `max_refills` is reached."""
    max_refills: Count = 4
    """How often a step may sample further problems, a batch of them at most each time."""

    @model_validator(mode="after")
    def filtered_groups_are_not_kept(self) -> AlgorithmSettings:
        if self.filter_groups and not self.drop_zero_signal_groups:
            raise ValueError(
                "algorithm.filter_groups replaces the groups that algorithm.drop_zero_signal_groups = false keeps; set "
                "one of them"
            )
        return self
