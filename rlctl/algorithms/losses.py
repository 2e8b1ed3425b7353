"""The policy losses by name, as far as it can be told without torch. The code is in `engine/policy_losses.py`.

Letters: r_t = p(t) / p_old(t) the ratio of token t, A_t its advantage, |y| the tokens of its completion, sg() what is
held fixed when the loss is differentiated, low and high the two clip ratios. Each is a loss, to be minimised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rlctl.algorithms.registry import Registry, calling_module
from rlctl.types import LossAggMode, LossSpec

Selection = Literal["", "clip_cov", "kl_cov"]


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """What a token's log-prob is trained for."""

    name: str
    function: str
    formula: str
    source: str = ""
    row_function: str = ""
    """What of each token a whole completion has to be known of, where the loss needs its mean."""
    agg_mode: LossAggMode | None = None
    """How its token losses are added up by its paper, whatever `loss_agg_mode` says; None leaves it to that."""
    selection: Selection = ""
    """How the driver chooses tokens of the whole minibatch that are treated apart."""
    clips: bool = True
    """Reads `clip_ratio_low` and `clip_ratio_high`."""

    # Any: functions on tensors, which this module does not know.
    def load(self) -> Any:
        return registry.load(self.name)

    def load_row_function(self) -> Any:
        from rlctl.backends.importing import import_foreign

        return import_foreign(self.row_function, needed_by=f"policy loss {self.name!r}") if self.row_function else None


ELSEWHERE = {
    "ppo": "vanilla",
    "ppo_clip": "vanilla",
    "regular": "vanilla",
    "dual_clip": "vanilla, bounded by clip_ratio_c,",
    "grpo": "vanilla with loss_agg_mode = seq-mean-token-mean",
    "dapo": "vanilla with loss_agg_mode = token-mean",
    "bnpo": "vanilla with loss_agg_mode = token-mean",
    "dr_grpo": "vanilla with loss_agg_mode = seq-mean-token-sum-norm",
    "geo_mean": "gmpo",
    "clip_higher": "vanilla with clip_ratio_high above clip_ratio_low",
    "reinforce": "gpg",
    "pg": "gpg",
    "policy_gradient": "gpg",
}
"""Names of verl, TRL and SkyRL, and of papers."""

registry: Registry[PolicyLoss] = Registry(
    "policy loss", group="rlctl.losses", setting="algorithm.policy_loss", elsewhere=ELSEWHERE
)


def register(
    name: str,
    *,
    function: str,
    formula: str = "by a plugin",
    source: str = "",
    row_function: str = "",
    agg_mode: LossAggMode | None = None,
    selection: Selection = "",
    clips: bool = True,
) -> None:
    """Announce a loss, its functions as "package.module:function". Raises ConfigError on a taken name."""
    entry = PolicyLoss(name, function, formula, source, row_function, agg_mode, selection, clips)
    registry.add(entry, module=calling_module())


def agg_mode_of(name: str, mode: LossAggMode) -> LossAggMode:
    """How the token losses of that loss are added up, where `mode` is asked for."""
    return registry.get(name).agg_mode or mode


def is_contract(spec: LossSpec) -> bool:
    """Whether a backend that knows nothing but the fields without a default computes this loss."""
    plain = (spec.policy_loss, spec.importance_sampling) == ("vanilla", "token")
    return plain and not spec.token_advantages and (not spec.kl_coef or spec.kl_estimator in ("k1", "k2", "k3"))


_CODE = "rlctl.engine.policy_losses"
register(
    "vanilla",
    function=f"{_CODE}:vanilla",
    formula="max(-A_t r_t, -A_t clip(r_t, 1 - low, 1 + high)), at most -A_t clip_ratio_c where A_t < 0",
    source="https://arxiv.org/abs/1707.06347, https://arxiv.org/abs/2503.14476, https://arxiv.org/abs/1912.09729",
)
register(
    "gspo",
    function=f"{_CODE}:gspo",
    row_function=f"{_CODE}:log_ratio",
    formula="max(-A_t s_t, -A_t clip(s_t, 1 - low, 1 + high)), s_t = sg(p(y) / p_old(y))^(1/|y|) p(t) / sg(p(t))",
    source="https://arxiv.org/abs/2507.18071",
    agg_mode="seq-mean-token-mean",
)
register(
    "cispo",
    function=f"{_CODE}:cispo",
    formula="-sg(clip(r_t, 1 - low, 1 + high)) A_t log p(t)",
    source="https://arxiv.org/abs/2506.13585",
)
register(
    "gmpo",
    function=f"{_CODE}:gmpo",
    row_function=f"{_CODE}:clipped_log_ratio",
    formula="-A (product of r_t, clipped to exp(-low)..exp(high) on the side that pays)^(1/|y|)",
    source="https://arxiv.org/abs/2507.20673",
    agg_mode="seq-mean-token-mean",
)
register(
    "sapo",
    function=f"{_CODE}:sapo",
    formula="-A_t 4/tau sigmoid(tau (r_t - 1)), tau = tau_pos where A_t > 0, else tau_neg",
    source="https://arxiv.org/abs/2511.20347",
    agg_mode="seq-mean-token-mean",
    clips=False,
)
register(
    "gpg",
    function=f"{_CODE}:policy_gradient",
    formula="-A_t log p(t)",
    source="https://arxiv.org/abs/2504.02546",
    clips=False,
)
register(
    "clip_cov",
    function=f"{_CODE}:clip_cov",
    formula="the clipped loss, 0 for a share of tokens drawn from those of high covariance of log p and A",
    source="https://arxiv.org/abs/2505.22617",
    selection="clip_cov",
)
register(
    "kl_cov",
    function=f"{_CODE}:kl_cov",
    formula="-A_t r_t, + ppo_kl_coef |log r_t| for the share of tokens of highest covariance of log p and A",
    source="https://arxiv.org/abs/2505.22617",
    selection="kl_cov",
    clips=False,
)
