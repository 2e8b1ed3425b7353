"""`[algorithm]`: from rewards to the loss. docs/algorithms.md has every formula with its source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rlctl.algorithms import estimators, losses
from rlctl.errors import RlctlError
from rlctl.settings.block import Block, Count
from rlctl.types import ImportanceSampling, KlEstimator, LossAggMode


class AlgorithmSettings(Block):
    adv_estimator: str = "grpo"
    """How rewards r_i of a prompt's n completions become advantages: grpo (r - mean)/(std + 1e-6); rloo r - mean of the
    others; opo r - mean weighted by length; gpg B/(B - M) (r - mean) with M of B groups flat; grpo_passk best - second
    best, for the best; remax r - reward of the likeliest completion, which is sampled too; reinforce_plus_plus
    whiten(r); reinforce_plus_plus_baseline whiten(r - mean); gdpo whiten(sum of each reward's grpo); or a plugin's."""
    norm_adv_by_std: bool = True
    """Divide advantages by the group's sample standard deviation (n-1, plus 1e-6); false only centres (Dr. GRPO).
    Of the estimators, grpo, grpo_passk and gdpo read it."""
    policy_loss: str = "vanilla"
    """The loss of a token with advantage A and ratio r: vanilla max(-A r, -A clip(r)); gspo the same with the geometric
    mean of the completion's ratios; gmpo -A times the geometric mean of clipped ratios; cispo -sg(clip(r)) A log p;
    sapo -A 4/tau sigmoid(tau (r - 1)); gpg -A log p; clip_cov and kl_cov hold back tokens of high covariance; or a
    plugin's. gspo, gmpo and sapo are means over completions, whatever loss_agg_mode says."""
    importance_sampling: ImportanceSampling = "token"
    """What the ratio of the vanilla loss is of: each token, or its completion (a geometric mean, as in gspo)."""
    clip_ratio_low: float = Field(0.2, ge=0, lt=1)
    """How far below 1 the importance ratio may go before its gradient is cut; gmpo: its log below 0."""
    clip_ratio_high: float = Field(0.2, ge=0)
    """How far above 1 the importance ratio may go before its gradient is cut; cispo's cap is 1 + this."""
    clip_ratio_c: float | None = Field(3.0, gt=1)
    """Dual clip of the vanilla loss: bound on ratio x |advantage| where the advantage is negative; null is off."""
    tau_pos: float = Field(1.0, gt=0)
    """sapo: temperature of the gate where the advantage is positive."""
    tau_neg: float = Field(1.05, gt=0)
    """sapo: temperature of the gate elsewhere; larger lets go sooner."""
    clip_cov_ratio: float = Field(0.0002, gt=0, le=1)
    """clip_cov: share of a minibatch's tokens that lose their gradient, at least one."""
    clip_cov_lb: float = 1.0
    """clip_cov: covariance above which tokens are drawn."""
    clip_cov_ub: float = 5.0
    """clip_cov: covariance below which tokens are drawn."""
    kl_cov_ratio: float = Field(0.0002, gt=0, le=1)
    """kl_cov: share of a minibatch's tokens, those of highest covariance, that are held back; at least one."""
    ppo_kl_coef: float = Field(1.0, ge=0)
    """kl_cov: weight of |log ratio| at those tokens."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of KL against the starting policy: in the loss, or with use_kl_in_reward off the reward. Where no KL has a
    weight, no reference model is loaded."""
    kl_loss_coef: float | None = Field(None, ge=0)
    """Weight of KL in the loss, beside kl_coef, that of KL off the reward; null is 0 there, and kl_coef where no KL is
    taken off the reward."""
    kl_estimator: KlEstimator = "k3"
    """KL in the loss, d = log p - log p_ref: k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d, abs = |d|, each differentiated
    as it stands; k1+ and k3+ have their values, and the gradient of k2, which is that of KL."""
    use_kl_in_reward: bool = False
    """Take kl_coef x KL off the reward of each token, before advantages. The loss has none then, unless kl_loss_coef
    gives it a weight of its own."""
    kl_penalty: Literal["k1", "k2", "k3", "abs"] = "k1"
    """How KL in the reward is estimated."""
    kl_target: float | None = Field(None, gt=0)
    """Steer kl_coef so that KL a token, off the reward, comes to this: after each step it is multiplied by 1 +
    clip(KL / kl_target - 1, -0.2, 0.2) x completions / kl_horizon. null leaves it as it is."""
    kl_horizon: int = Field(10_000, gt=0)
    """Completions over which a steered kl_coef may change by a fifth."""
    entropy_coeff: float = Field(0.0, ge=0)
    """Weight of the entropy bonus, per token in nats."""
    loss_agg_mode: LossAggMode = "token-mean"
    """How token losses become one number; seq-mean-token-sum-norm divides by rollout.max_response_length (Dr. GRPO)."""
    rollout_is: Literal["off", "token", "sequence"] = "off"
    """Correct for a sampler that computes other probabilities than the trainer: weigh each token by the trainer's over
    the sampler's probability, before the update, of the token or of its completion."""
    rollout_is_mode: Literal["truncate", "mask"] = "truncate"
    """What becomes of weights above `rollout_is_threshold`: cut to it, or 0 (so are those below `rollout_is_lower`)."""
    rollout_is_threshold: float = Field(2.0, gt=0)
    """Largest weight that stays as it is."""
    rollout_is_lower: float | None = Field(None, ge=0)
    """Mask: least weight that is not 0; null is 1 / rollout_is_threshold."""
    rollout_is_combine: Literal["product", "geometric"] = "product"
    """How the ratios of a completion's tokens make its weight: their product, or their geometric mean."""
    mask_truncated_completions: bool = False
    """Leave completions that were cut at rollout.max_response_length out of the update, numerator and denominator;
    their rewards still count for their siblings' advantages."""
    drop_zero_signal_groups: bool = True
    """Leave groups whose rewards are all equal out of the update, numerator and denominator; they are counted. Kept by
    estimators that learn from them: remax, gpg, gdpo and the two reinforce_plus_plus."""
    filter_groups: bool = False
    """Dynamic sampling (DAPO): replace groups whose rewards are all equal by further problems, until the batch is full
    or `max_refills` is reached."""
    max_refills: Count = 4
    """How often a step may sample further problems, a batch of them at most each time."""

    @field_validator("adv_estimator")
    @classmethod
    def estimator_is_known(cls, value: str) -> str:
        return _known(value, estimators.registry.get)

    @field_validator("policy_loss")
    @classmethod
    def policy_loss_is_known(cls, value: str) -> str:
        return _known(value, losses.registry.get)

    @model_validator(mode="after")
    def filtered_groups_are_not_kept(self) -> AlgorithmSettings:
        if self.filter_groups and not self.drop_zero_signal_groups:
            raise ValueError(
                "algorithm.filter_groups replaces the groups that algorithm.drop_zero_signal_groups = false keeps; set "
                "one of them"
            )
        return self

    @model_validator(mode="after")
    def a_loss_is_added_up_as_its_paper_says(self) -> AlgorithmSettings:
        own = losses.registry.get(self.policy_loss).agg_mode
        if own is not None and self.loss_agg_mode not in (own, "token-mean"):
            raise ValueError(
                f"algorithm.policy_loss = {self.policy_loss} is a mean over completions: leave out "
                f"algorithm.loss_agg_mode = {self.loss_agg_mode}, or set it to {own}"
            )
        return self

    @model_validator(mode="after")
    def ratios_of_completions_are_for_the_vanilla_loss(self) -> AlgorithmSettings:
        if self.importance_sampling == "sequence" and self.policy_loss not in ("vanilla", "gspo"):
            raise ValueError(
                f"algorithm.importance_sampling = sequence has no meaning for algorithm.policy_loss = "
                f"{self.policy_loss}; it is for vanilla"
            )
        return self

    @model_validator(mode="after")
    def kl_in_reward_has_a_weight(self) -> AlgorithmSettings:
        if self.use_kl_in_reward and not self.kl_coef:
            raise ValueError("algorithm.use_kl_in_reward needs its weight: set algorithm.kl_coef above 0")
        if self.use_kl_in_reward and self.adv_estimator == "gdpo":
            raise ValueError(
                "algorithm.adv_estimator = gdpo normalises each reward by itself, and KL is none of them: set "
                "algorithm.use_kl_in_reward = false, which puts KL into the loss"
            )
        return self

    @model_validator(mode="after")
    def kl_in_the_loss_has_one_weight(self) -> AlgorithmSettings:
        if self.use_kl_in_reward or self.kl_loss_coef is None or self.kl_coef in (0, self.kl_loss_coef):
            return self
        raise ValueError(
            f"algorithm.kl_coef = {self.kl_coef:g} and algorithm.kl_loss_coef = {self.kl_loss_coef:g} are both the "
            "weight of KL in the loss: set one of them, or algorithm.use_kl_in_reward = true, which makes kl_coef that "
            "of KL off the reward"
        )

    @model_validator(mode="after")
    def kl_target_is_of_kl_in_reward(self) -> AlgorithmSettings:
        if self.kl_target is not None and not self.use_kl_in_reward:
            raise ValueError(
                f"algorithm.kl_target = {self.kl_target:g} steers the weight of KL off the reward, and none is taken "
                "off it: set algorithm.use_kl_in_reward = true, or leave kl_target out"
            )
        return self

    @model_validator(mode="after")
    def bounds_have_room_between_them(self) -> AlgorithmSettings:
        if self.clip_cov_lb >= self.clip_cov_ub:
            raise ValueError(
                f"algorithm.clip_cov_lb = {self.clip_cov_lb:g} must be below algorithm.clip_cov_ub = "
                f"{self.clip_cov_ub:g}"
            )
        low, high = self.least_weight, self.rollout_is_threshold
        if self.rollout_is != "off" and self.rollout_is_mode == "mask" and low >= high:
            raise ValueError(
                f"algorithm.rollout_is_threshold = {high:g} must be above the least weight, which is {low:g} "
                "(algorithm.rollout_is_lower; null is 1 / rollout_is_threshold)"
            )
        return self

    @property
    def weight_of_kl_in_reward(self) -> float:
        """Where it is steered, in the first step."""
        return self.kl_coef if self.use_kl_in_reward else 0.0

    @property
    def weight_of_kl_in_loss(self) -> float:
        if self.kl_loss_coef is not None:
            return self.kl_loss_coef
        return 0.0 if self.use_kl_in_reward else self.kl_coef

    @property
    def needs_reference(self) -> bool:
        return self.weight_of_kl_in_loss > 0 or self.weight_of_kl_in_reward > 0

    @property
    def least_weight(self) -> float:
        """The least weight that is not masked."""
        return 1 / self.rollout_is_threshold if self.rollout_is_lower is None else self.rollout_is_lower


def _known(name: str, get: Callable[[str], object]) -> str:
    try:
        get(name)
    except RlctlError as error:
        raise ValueError(" ".join(filter(None, ("is not known:", error.message, error.hint)))) from error
    return name
