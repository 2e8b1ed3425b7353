"""Settings of `[algorithm]` that the chosen algorithm does not read, so that setting them changes nothing.

None of them is wrong: a preset may hold what only some of its variants use. But who sets one expects something of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rlctl.algorithms import estimators, losses

if TYPE_CHECKING:  # the settings load pydantic, and only the type is needed here
    from rlctl.settings.algorithm import AlgorithmSettings

_Reads = Callable[["AlgorithmSettings"], bool]


def _of_loss(*names: str) -> _Reads:
    return lambda algorithm: algorithm.policy_loss in names or not _is_built_in(algorithm.policy_loss)


def _is_built_in(loss: str) -> bool:
    """A plugin's loss may read what it likes."""
    return losses.registry.get(loss).function.startswith("rlctl.")


_CORRECTED: _Reads = lambda algorithm: algorithm.rollout_is != "off"  # noqa: E731

READERS: tuple[tuple[str, str, _Reads], ...] = (
    ("norm_adv_by_std", "adv_estimator", lambda a: estimators.registry.get(a.adv_estimator).scales),
    ("clip_ratio_low", "policy_loss", lambda a: a.policy_loss != "cispo" and losses.registry.get(a.policy_loss).clips),
    ("clip_ratio_high", "policy_loss", lambda a: losses.registry.get(a.policy_loss).clips),
    ("clip_ratio_c", "policy_loss", _of_loss("vanilla")),
    ("tau_pos", "policy_loss", _of_loss("sapo")),
    ("tau_neg", "policy_loss", _of_loss("sapo")),
    ("clip_cov_ratio", "policy_loss", _of_loss("clip_cov")),
    ("clip_cov_lb", "policy_loss", _of_loss("clip_cov")),
    ("clip_cov_ub", "policy_loss", _of_loss("clip_cov")),
    ("kl_cov_ratio", "policy_loss", _of_loss("kl_cov")),
    ("ppo_kl_coef", "policy_loss", _of_loss("kl_cov")),
    ("kl_estimator", "kl_coef", lambda a: a.use_kl_in_reward or a.weight_of_kl_in_loss > 0),
    ("kl_estimator", "use_kl_in_reward", lambda a: not a.use_kl_in_reward or a.weight_of_kl_in_loss > 0),
    ("kl_penalty", "use_kl_in_reward", lambda a: a.use_kl_in_reward),
    ("kl_horizon", "kl_target", lambda a: a.kl_target is not None),
    ("rollout_is_mode", "rollout_is", _CORRECTED),
    ("rollout_is_threshold", "rollout_is", _CORRECTED),
    ("rollout_is_lower", "rollout_is", _CORRECTED),
    ("rollout_is_lower", "rollout_is_mode", lambda a: not _CORRECTED(a) or a.rollout_is_mode == "mask"),
    ("rollout_is_combine", "rollout_is", lambda a: a.rollout_is == "sequence"),
    ("max_refills", "filter_groups", lambda a: a.filter_groups),
)
"""(setting, the one that decides whether it is read, whether it is)"""


OF_COMPLETIONS = 0.05
"""Bounds from which on a geometric mean over a completion is hardly ever cut: it stays within a percent of 1."""


def idle_lines(algorithm: AlgorithmSettings) -> Iterator[str]:
    """A line for each setting that is not its default and that this algorithm has no use for; and for odd bounds."""
    defaults = type(algorithm)()
    for name, decides, reads in READERS:
        value = getattr(algorithm, name)
        if value != getattr(defaults, name) and not reads(algorithm):
            yield (
                f"algorithm.{name} = {_shown(value)} changes nothing, since algorithm.{decides} is "
                f"{_shown(getattr(algorithm, decides))}"
            )

    completions = algorithm.policy_loss == "gspo" or algorithm.importance_sampling == "sequence"
    low, high = algorithm.clip_ratio_low, algorithm.clip_ratio_high
    if completions and min(low, high) >= OF_COMPLETIONS:
        yield (
            f"algorithm.clip_ratio_low = {low:g} and clip_ratio_high = {high:g} hardly ever cut the ratio of a whole "
            "completion: GSPO's paper has 3e-4 and 4e-4"
        )
    if algorithm.policy_loss == "gmpo" and (low, high) == (defaults.clip_ratio_low, defaults.clip_ratio_high):
        yield (
            f"algorithm.clip_ratio_low = {low:g} and clip_ratio_high = {high:g} bound a token's log-ratio where "
            "policy_loss = gmpo: GMPO's paper has 0.4 and 0.4"
        )


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
