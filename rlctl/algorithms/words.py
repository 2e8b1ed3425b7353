"""The algorithm of a run in one line: what is really computed, whatever the settings leave to a default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlctl.algorithms import estimators, losses

if TYPE_CHECKING:  # the settings load pydantic, and only the type is needed here
    from rlctl.settings import Settings

_MASKED = "truncated completions left out"


def algorithm_line(settings: Settings) -> str:
    """What a run says of it first."""
    return f"effective algorithm: {effective(settings)}"


def effective(settings: Settings) -> str:
    """Estimator, normalisation, loss, aggregation, clip, KL, correction, and what is left out."""
    return ", ".join(_parts(settings))


def _parts(settings: Settings) -> Iterator[str]:
    algorithm = settings.algorithm
    estimator = estimators.registry.get(algorithm.adv_estimator)
    yield _advantages(settings, estimator)
    yield from _rewards(settings)
    yield _loss(settings)
    yield from _kl(settings)
    if algorithm.entropy_coeff:
        yield f"entropy bonus {algorithm.entropy_coeff:g}"
    yield _correction(settings)
    if most := settings.trainer.max_off_policy_steps:
        yield f"samples of policies up to {most} step{'s' if most > 1 else ''} old"
    flat = "left out" if algorithm.drop_zero_signal_groups and not estimator.keeps_flat_groups else "kept"
    yield f"groups of equal rewards {'replaced' if algorithm.filter_groups else flat}"
    if algorithm.mask_truncated_completions:
        yield _MASKED


def _advantages(settings: Settings, estimator: estimators.Estimator) -> str:
    if not estimator.scales:
        return f"{estimator.name} advantages"
    if settings.algorithm.norm_adv_by_std:
        return f"{estimator.name} advantages divided by their standard deviation"
    return f"{estimator.name} advantages centred only"


def _rewards(settings: Settings) -> Iterator[str]:
    reward = settings.reward
    if reward.rank_in_group:
        yield "rewards ranked in their group"
    if reward.overlong_buffer_len:
        yield f"up to {reward.overlong_penalty_factor:g} off over the last {reward.overlong_buffer_len} tokens"
    if reward.length_penalty:
        yield f"{reward.length_penalty_form} length penalty {reward.length_penalty:g}"


def _loss(settings: Settings) -> str:
    algorithm, spec = settings.algorithm, settings.loss()
    loss = losses.registry.get(spec.policy_loss)
    words = f"{loss.name} loss, {spec.loss_agg_mode}"
    if loss.name == "vanilla" and spec.importance_sampling == "sequence":
        words += " of completions' ratios"
    if loss.clips:
        words += f", clip {spec.clip_ratio_low:g}/{spec.clip_ratio_high:g}"
    if loss.name == "vanilla" and spec.clip_ratio_c:
        words += f", dual clip {spec.clip_ratio_c:g}"
    if loss.name == "sapo":
        words += f", tau {algorithm.tau_pos:g}/{algorithm.tau_neg:g}"
    if loss.selection:
        share = algorithm.clip_cov_ratio if loss.selection == "clip_cov" else algorithm.kl_cov_ratio
        words += f", {share:g} of the tokens by covariance"
    return words


def _kl(settings: Settings) -> Iterator[str]:
    algorithm = settings.algorithm
    if in_loss := algorithm.weight_of_kl_in_loss:
        yield f"KL {in_loss:g} ({algorithm.kl_estimator}) in the loss"
    if in_reward := algorithm.weight_of_kl_in_reward:
        words = f"KL {in_reward:g} ({algorithm.kl_penalty}) off the reward"
        if algorithm.kl_target is not None:
            words += f" at first, steered to {algorithm.kl_target:g} nats a token"
        yield words
    if not algorithm.needs_reference:
        yield "no KL"


def _correction(settings: Settings) -> str:
    algorithm = settings.algorithm
    if algorithm.rollout_is == "off":
        return "no rollout correction"
    bound = f"{algorithm.rollout_is_threshold:g}"
    if algorithm.rollout_is_mode == "mask":
        what = f"masked outside {algorithm.least_weight:g} to {bound}"
    else:
        what = f"truncated at {bound}"
    combined = f" ({algorithm.rollout_is_combine})" if algorithm.rollout_is == "sequence" else ""
    return f"rollout weights by {algorithm.rollout_is}{combined} {what}"
