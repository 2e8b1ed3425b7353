"""Advantage estimators: how much better each completion was than what could be expected of its prompt.

Each is a function of all groups of a step, since some look at the whole batch: [P] groups -> [P][n] advantages, a
number for a completion, or [C] numbers, one a token. Formulas follow verl where docs/algorithms.md says nothing else.

Whitening is over tokens, with N - 1, as in verl. Equal rewards, and a group that has shrunk to one completion, give
exactly 0 wherever a group is compared with itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Advantage = float | Values

STD_EPS = 1e-6
"""Added to a group's standard deviation, as in verl."""
WHITEN_EPS = 1e-8
"""Added to the variance of a batch, as in verl."""


@dataclass(frozen=True, slots=True)
class Group:
    """The completions of one prompt that are compared, [n] of everything."""

    rewards: Sequence[float]
    lengths: Sequence[int]
    """Tokens that the policy wrote."""
    parts: Sequence[Sequence[tuple[float, float]]] = ()
    """[n][K] (weight, score) of each reward function."""
    baseline: float | None = None
    """The reward of the prompt's likeliest completion, for estimators that need it."""
    penalties: Sequence[Values] | None = None
    """[n] of [C]: what is taken off the reward at each token, for KL in the reward."""

    @property
    def scores(self) -> list[float]:
        """[n] rewards, less all that is taken off their tokens."""
        if self.penalties is None:
            return list(self.rewards)
        pairs = zip(self.rewards, self.penalties, strict=True)
        return [reward - math.fsum(penalties) for reward, penalties in pairs]

    def returns(self, *, less: float = 0.0) -> list[Advantage]:
        """[n] rewards from each token to the end, undiscounted; one number where every token has the same."""
        if self.penalties is None:
            return [reward - less for reward in self.rewards]
        pairs = zip(self.rewards, self.penalties, strict=True)
        return [reward - less - np.cumsum(p[::-1], dtype=np.float64)[::-1] for reward, p in pairs]


def grpo(groups: Sequence[Group], *, scale: bool) -> list[list[float]]:
    """Each completion against its group's mean, over its standard deviation where `scale`."""
    return [group_advantages(group.scores, scale=scale) for group in groups]


def group_advantages(rewards: Sequence[float], *, scale: bool, eps: float = STD_EPS) -> list[float]:
    """How much better than its siblings each completion did: [n] rewards -> [n] advantages.

    Centred on the group's mean; with `scale`, divided by its sample standard deviation (n - 1) plus `eps`, as in
    verl. Equal rewards, and a group of one, give exactly 0.
    """
    # Compare rewards, not differences: the mean of three 0.1s is not 0.1 in floating point.
    if len(set(rewards)) < 2:
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not scale:
        return centred
    std = _deviation(rewards)
    return [difference / (std + eps) for difference in centred]


def _deviation(rewards: Sequence[float]) -> float:
    """Sample standard deviation (n - 1) of at least two."""
    mean = math.fsum(rewards) / len(rewards)
    return math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))


def rloo(groups: Sequence[Group], *, scale: bool) -> list[list[float]]:
    """Each completion against the mean of the others: n / (n - 1) times the centred reward."""
    return [
        [difference * n / (n - 1) if n > 1 else 0.0 for difference in group_advantages(group.scores, scale=False)]
        for group in groups
        for n in [len(group.rewards)]
    ]


def opo(groups: Sequence[Group], *, scale: bool) -> list[list[float]]:
    """Against the group's mean weighted by length, the baseline of least variance for on-policy gradients."""
    return [_above_weighted_mean(group.scores, group.lengths) for group in groups]


def _above_weighted_mean(scores: Sequence[float], lengths: Sequence[int]) -> list[float]:
    tokens = sum(lengths)
    if len(set(scores)) < 2 or not tokens:
        return [0.0] * len(scores)
    baseline = math.fsum(length * score for length, score in zip(lengths, scores, strict=True)) / tokens
    return [score - baseline for score in scores]


def gpg(groups: Sequence[Group], *, scale: bool) -> list[list[float]]:
    """Centred rewards times B / (B - M), where M of the B groups have equal rewards and so no gradient.

    The paper's factor (its equation for accurate gradient estimation). verl divides by the number of rewards that are
    not 0 instead, which counts solved groups as useful ones. Groups without gradient stay in the denominator of the
    loss, which the factor makes up for.
    """
    centred = [group_advantages(group.scores, scale=False) for group in groups]
    useful = sum(any(values) for values in centred)
    factor = sum(map(bool, centred)) / useful if useful else 1.0
    return [[factor * value for value in values] for values in centred]


def grpo_passk(groups: Sequence[Group], *, scale: bool) -> list[list[float]]:
    """Only the best completion of a group counts, by how far it is ahead of the second best (pass@k as the goal)."""
    return [_lead_of_the_best(group.scores, scale=scale) for group in groups]


def _lead_of_the_best(scores: Sequence[float], *, scale: bool) -> list[float]:
    advantages = [0.0] * len(scores)
    if len(scores) > 1:
        second, best = sorted(scores)[-2:]
        advantages[scores.index(best)] = (best - second) / (_deviation(scores) + STD_EPS if scale else 1.0)
    return advantages


def reinforce_plus_plus(groups: Sequence[Group], *, scale: bool) -> list[list[Advantage]]:
    """Returns, not compared with any group, whitened over the tokens of the step."""
    return whitened([group.returns() for group in groups], lengths=[group.lengths for group in groups])


def reinforce_plus_plus_baseline(groups: Sequence[Group], *, scale: bool) -> list[list[Advantage]]:
    """Centred on the group, then whitened over the tokens of the step."""
    centred = [group_advantages(group.scores, scale=False) for group in groups]
    return whitened(centred, lengths=[group.lengths for group in groups])


def remax(groups: Sequence[Group], *, scale: bool) -> list[list[Advantage]]:
    """Returns less the reward of the prompt's likeliest completion."""
    found = []
    for group in groups:
        assert group.baseline is not None, "groups without a baseline are left out before"
        found.append(group.returns(less=group.baseline))
    return found


def gdpo(groups: Sequence[Group], *, scale: bool) -> list[list[Advantage]]:
    """Each reward function normalised within the group by itself, weighed, summed, and whitened over the step."""
    return whitened(
        [_sum_of_normalised(group, scale=scale) for group in groups], lengths=[group.lengths for group in groups]
    )


def _sum_of_normalised(group: Group, *, scale: bool) -> list[float]:
    columns = list(zip(*group.parts, strict=True))  # [K][n] (weight, score)
    normalised = [
        [weight * value for (weight, _), value in zip(column, values, strict=True)]
        for column in columns
        for values in [group_advantages([score for _, score in column], scale=scale)]
    ]
    return [math.fsum(values) for values in zip(*normalised, strict=True)]


def whitened(values: Sequence[Sequence[Advantage]], *, lengths: Sequence[Sequence[int]]) -> list[list[Advantage]]:
    """Less the mean over all tokens, over their standard deviation (N - 1): [P][n] -> [P][n].

    All tokens alike give 0.
    """
    flat = [np.broadcast_to(np.asarray(v, np.float64), n) for v, n in _paired(values, lengths)]
    tokens = np.concatenate(flat) if flat else np.zeros(0)
    alike = tokens.size < 2 or bool(np.ptp(tokens) == 0)
    mean = 0.0 if alike else float(tokens.mean())
    std = 1.0 if alike else math.sqrt(float(tokens.var(ddof=1)) + WHITEN_EPS)
    apply: Callable[[Advantage], Advantage] = (lambda v: 0.0 * v) if alike else (lambda v: (v - mean) / std)
    return [[apply(value) for value in group] for group in values]


def _paired(values: Sequence[Sequence[Advantage]], lengths: Sequence[Sequence[int]]) -> list[tuple[Advantage, int]]:
    return [
        pair for group, group_lengths in zip(values, lengths, strict=True)
        for pair in zip(group, group_lengths, strict=True)
    ]  # fmt: skip
