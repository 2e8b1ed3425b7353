"""The advantage estimators by name: verl's names, each with its formula and paper. The code is in `advantages.py`.

Letters: r_i the reward of completion i of a prompt's n, l_i its tokens, mean and std (n - 1) over the prompt's n;
whiten(x) is (x - m) / sqrt(v + 1e-8) with mean m and variance v (N - 1) over the N tokens of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlctl.algorithms.registry import Registry, calling_module

Function = Callable[..., Sequence[Sequence[Any]]]
"""`f(groups, *, scale)`: P `advantages.Group` -> [P][n] advantages, each a number or [C] of them, one a token."""


ByToken = Literal["", "kl", "always"]


@dataclass(frozen=True, slots=True)
class Estimator:
    """How rewards become advantages."""

    name: str
    function: str
    formula: str
    source: str = ""
    needs_baseline: bool = False
    """Wants the reward of each prompt's likeliest completion, which is then sampled too."""
    keeps_flat_groups: bool = False
    """Learns from groups whose rewards are all equal, which are then not left out."""
    scales: bool = False
    """Reads `algorithm.norm_adv_by_std`."""
    by_token: ByToken = ""
    """When it gives tokens advantages of their own: where KL is taken off the reward, or always."""

    def gives_tokens_their_own(self, *, kl_in_reward: bool) -> bool:
        return self.by_token == "always" or (self.by_token == "kl" and kl_in_reward)

    def load(self) -> Function:
        function: Function = registry.load(self.name)
        return function


ELSEWHERE = {
    "dr_grpo": "grpo with norm_adv_by_std = false and loss_agg_mode = seq-mean-token-sum-norm",
    "group_norm": "grpo",
    "grpo_vectorized": "grpo",
    "leave_one_out": "rloo",
    "loop": "rloo",
    "rloo_vectorized": "rloo",
    "reinforce++": "reinforce_plus_plus",
    "reinforce": "reinforce_plus_plus",
    "reinforce_baseline": "reinforce_plus_plus_baseline",
    "dapo": "grpo with clip_ratio_high = 0.28 and filter_groups = true",
}
"""Names of verl, OpenRLHF, SkyRL, NeMo-RL and of papers."""

registry: Registry[Estimator] = Registry(
    "advantage estimator", group="rlctl.advantages", setting="algorithm.adv_estimator", elsewhere=ELSEWHERE
)


def register(
    name: str,
    *,
    function: str,
    formula: str = "by a plugin",
    source: str = "",
    needs_baseline: bool = False,
    keeps_flat_groups: bool = False,
    scales: bool = False,
    by_token: ByToken = "",
) -> None:
    """Announce an estimator, its function as "package.module:function". Raises ConfigError on a taken name."""
    entry = Estimator(name, function, formula, source, needs_baseline, keeps_flat_groups, scales, by_token)
    registry.add(entry, module=calling_module())


_CODE = "rlctl.algorithms.advantages"
register(
    "grpo",
    function=f"{_CODE}:grpo",
    formula="(r_i - mean) / (std + 1e-6); Dr. GRPO, without norm_adv_by_std: r_i - mean",
    source="https://arxiv.org/abs/2402.03300, https://arxiv.org/abs/2503.20783",
    scales=True,
)
register(
    "rloo",
    function=f"{_CODE}:rloo",
    formula="r_i - mean of the other n - 1",
    source="https://arxiv.org/abs/2402.14740",
)
register(
    "reinforce_plus_plus",
    function=f"{_CODE}:reinforce_plus_plus",
    formula="whiten(r_i - KL penalties from the token on)",
    source="https://arxiv.org/abs/2501.03262",
    keeps_flat_groups=True,
    by_token="kl",
)
register(
    "reinforce_plus_plus_baseline",
    function=f"{_CODE}:reinforce_plus_plus_baseline",
    formula="whiten(r_i - mean)",
    source="https://arxiv.org/abs/2501.03262",
    keeps_flat_groups=True,
)
register(
    "remax",
    function=f"{_CODE}:remax",
    formula="r_i - reward of the prompt's likeliest completion",
    source="https://arxiv.org/abs/2310.10505",
    needs_baseline=True,
    keeps_flat_groups=True,
    by_token="kl",
)
register(
    "opo",
    function=f"{_CODE}:opo",
    formula="r_i - sum(l_j r_j) / sum(l_j)",
    source="https://arxiv.org/abs/2505.23585",
)
register(
    "gpg",
    function=f"{_CODE}:gpg",
    formula="B / (B - M) (r_i - mean), with M of B groups of equal rewards",
    source="https://arxiv.org/abs/2504.02546",
    keeps_flat_groups=True,
)
register(
    "grpo_passk",
    function=f"{_CODE}:grpo_passk",
    formula="(best - second best) / (std + 1e-6) for the best, 0 for the others",
    source="https://arxiv.org/abs/2503.19595",
    scales=True,
)
register(
    "gdpo",
    function=f"{_CODE}:gdpo",
    formula="whiten(sum over rewards k of w_k (r_ik - mean_k) / (std_k + 1e-6))",
    source="https://arxiv.org/abs/2601.05242",
    keeps_flat_groups=True,
    scales=True,
)
