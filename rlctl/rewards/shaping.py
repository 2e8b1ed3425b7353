"""What is done to the reward of a group beside weighing its functions: ranks, and penalties for length.

Only in training; evaluations show rewards as they are. A completion whose reward failed stays without one.

Letters: n completions of one prompt, L = rollout.max_response_length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rlctl.types import Rollout

LengthForm = Literal["linear", "group"]


@dataclass(frozen=True, slots=True)
class ShapingSpec:
    """Lengths in tokens; a penalty of 0, and a buffer of 0, are off."""

    max_response_length: int
    rank_in_group: bool = False
    overlong_buffer_len: int = 0
    overlong_penalty_factor: float = 1.0
    length_penalty: float = 0.0
    length_penalty_form: LengthForm = "linear"

    @property
    def is_off(self) -> bool:
        return not (self.rank_in_group or self.overlong_buffer_len or self.length_penalty)


def shaped(group: Sequence[Rollout], spec: ShapingSpec) -> list[Rollout]:
    """The group with its rewards shaped, and what was added for length."""
    counted = [rollout for rollout in group if rollout.reward is not None]
    if spec.is_off or not counted:
        return list(group)
    rewards = [rollout.reward for rollout in counted if rollout.reward is not None]
    lengths = [len(rollout.completion.token_ids) for rollout in counted]
    base = ranks(rewards) if spec.rank_in_group else rewards
    done = iter(zip(base, length_parts(rewards, lengths, spec), strict=True))
    return [rollout if rollout.reward is None else _added(rollout, *next(done)) for rollout in group]


def _added(rollout: Rollout, base: float, parts: tuple[tuple[float, float], ...]) -> Rollout:
    added = replace(rollout, length_parts=parts)
    return replace(added, reward=base + added.shaping)


def ranks(rewards: Sequence[float]) -> list[float]:
    """The rank of each among its siblings, 0 the worst to 1 the best; equals share the mean of their ranks."""
    n, ordered = len(rewards), sorted(rewards)
    if n < 2:
        return [0.5] * n
    return [(bisect_left(ordered, r) + bisect_right(ordered, r) - 1) / 2 / (n - 1) for r in rewards]


def length_parts(
    rewards: Sequence[float], lengths: Sequence[int], spec: ShapingSpec
) -> list[tuple[tuple[float, float], ...]]:
    """[n] of (weight, value), one for each penalty that is on: what it adds is their product.

    Never above 0 but for short right answers in the group's form.
    """
    columns: list[list[tuple[float, float]]] = []
    if spec.length_penalty:
        linear = spec.length_penalty_form == "linear"
        values = [-n / spec.max_response_length for n in lengths] if linear else group_length_rewards(rewards, lengths)
        columns.append([(spec.length_penalty, value) for value in values])
    if spec.overlong_buffer_len:
        columns.append([(spec.overlong_penalty_factor, soft_punishment(length, spec)) for length in lengths])
    return list(zip(*columns, strict=True)) if columns else [()] * len(lengths)


def soft_punishment(length: int, spec: ShapingSpec) -> float:
    """DAPO's: 0 up to L - buffer, then falling to -1 at L.

    Source: https://arxiv.org/abs/2503.14476, equation 13.
    """
    over = length - (spec.max_response_length - spec.overlong_buffer_len)
    return -min(max(over, 0) / spec.overlong_buffer_len, 1.0)


def group_length_rewards(rewards: Sequence[float], lengths: Sequence[int]) -> list[float]:
    """Kimi k1.5's length reward: 0.5 for the shortest of the group to -0.5 for the longest, where the answer is right,
    and never above 0 where it is not; 0 for all of one length. Right is the group's highest reward above 0.

    Source: https://arxiv.org/abs/2501.12599, section 2.3.3.
    """
    shortest, longest = min(lengths), max(lengths)
    if shortest == longest:
        return [0.0] * len(lengths)
    best = max(rewards)
    terms = [0.5 - (length - shortest) / (longest - shortest) for length in lengths]
    return [
        term if reward == best and reward > 0 else min(0.0, term) for reward, term in zip(rewards, terms, strict=True)
    ]
