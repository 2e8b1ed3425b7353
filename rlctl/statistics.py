"""What an evaluation can claim: intervals over problems, majority votes, and whether two models differ.

Problems are the units that are drawn at random; the completions of one problem are not independent of each other, so
every interval and test here works on one number a problem. All of it is seeded: the same scores give the same figures.

Sources: percentile and BCa bootstrap, Efron & Tibshirani 1993, chapters 13 and 14; exact McNemar test, a sign test on
the problems that differ; sign-flip permutation test, Fisher's randomisation test for paired scores.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float64]
"""One score a problem: [P]."""

RESAMPLES = 10_000
"""Bootstrap and permutation draws: the ends of an interval are then good to about 1 % of its width."""

CHUNK = 2**22
"""Draws held in memory at once."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the interval of the given level around it; both ends are None where nothing can be said."""

    value: float
    low: float | None
    high: float | None
    level: float = 0.95
    method: Literal["BCa bootstrap", "Clopper-Pearson"] = "BCa bootstrap"


def interval(scores: Sequence[float], *, seed: int, level: float = 0.95) -> Interval:
    """The mean over problems with its BCa bootstrap interval; [P] scores.

    Where all scores are equal every resample has the same mean, and a bootstrap would claim certainty: for scores of
    0 or 1 the exact interval of Clopper and Pearson is given there, for others none.
    """
    values = np.asarray(scores, dtype=np.float64)
    mean = float(values.mean())
    if len(values) < 2:
        return Interval(mean, None, None, level)
    if np.ptp(values) == 0:
        return _all_equal(mean, len(values), level)
    low, high = _bca(values, _resampled_means(values, seed=seed), level=level)
    return Interval(mean, low, high, level)


def _all_equal(value: float, count: int, level: float) -> Interval:
    # Clopper-Pearson at 0 or all of n successes: the bound solves (1 - p)^n = (1 - level) / 2.
    reach = 1 - ((1 - level) / 2) ** (1 / count)
    if value == 0.0:
        return Interval(value, 0.0, reach, level, "Clopper-Pearson")
    if value == 1.0:
        return Interval(value, 1 - reach, 1.0, level, "Clopper-Pearson")
    return Interval(value, None, None, level)


def _resampled_means(values: Scores, *, seed: int) -> Scores:
    """The means of RESAMPLES draws of P from P problems, with replacement."""
    generator = np.random.Generator(np.random.Philox(seed))
    size = len(values)
    rows = max(1, CHUNK // size)
    parts = [
        values[generator.integers(0, size, (min(rows, RESAMPLES - first), size))].mean(axis=1)
        for first in range(0, RESAMPLES, rows)
    ]
    return np.concatenate(parts)


def _bca(values: Scores, means: Scores, *, level: float) -> tuple[float, float]:
    """Bias-corrected and accelerated: percentiles moved for skewness. Efron & Tibshirani, equations 14.9 to 14.15."""
    normal = NormalDist()
    below = (np.sum(means < values.mean()) + 0.5 * np.sum(means == values.mean())) / len(means)
    bias = normal.inv_cdf(min(max(float(below), 1e-6), 1 - 1e-6))
    # The jackknife's means differ from the mean by (mean - value) / (P - 1), so their skewness is that of the values.
    apart = values.mean() - values
    acceleration = -float(np.sum(apart**3)) / (6 * float(np.sum(apart**2)) ** 1.5)
    ends = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        z = bias + normal.inv_cdf(tail)
        ends.append(normal.cdf(bias + z / (1 - acceleration * z)))
    low, high = np.quantile(means, ends)
    return float(low), float(high)


def majority(answers: Sequence[Hashable | None]) -> int | None:
    """Which completion the majority answers like: the index of the first that gave the most frequent answer.

    A tie goes to the answer that was given first; None, no answer, has no vote. Returns None when there is no vote.
    """
    votes: dict[Hashable, list[int]] = {}
    for index, answer in enumerate(answers):
        if answer is not None:
            votes.setdefault(answer, []).append(index)
    return max(votes.values(), key=len)[0] if votes else None


TestName = Literal["exact McNemar", "paired permutation"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A on the same problems: the difference of means with its interval, and the two-sided p-value."""

    difference: Interval
    p_value: float
    test: TestName
    num_problems: int
    better: int
    worse: int

    @property
    def why(self) -> str:
        if self.test == "exact McNemar":
            return "each problem is right or wrong in both, so only those that differ count, as coin flips"
        return "problems have scores between right and wrong, so the signs of their differences are flipped at random"


def compare(first: Sequence[float], second: Sequence[float], *, seed: int) -> Comparison:
    """Whether B = `second` differs from A = `first`: [P] and [P] scores of the same problems in the same order.

    Exact McNemar where all scores are 0 or 1, else a permutation test of the differences.
    """
    differences = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    binary = set(first) | set(second) <= {0.0, 1.0}
    return Comparison(
        difference=_difference_interval(differences, seed=seed),
        p_value=mcnemar(better, worse) if binary else permutation(differences, seed=seed),
        test="exact McNemar" if binary else "paired permutation",
        num_problems=len(differences),
        better=better,
        worse=worse,
    )


def _difference_interval(differences: Scores, *, seed: int) -> Interval:
    if len(differences) and np.ptp(differences) == 0:
        return Interval(float(differences[0]), None, None)
    return interval(differences.tolist(), seed=seed)


def mcnemar(better: int, worse: int) -> float:
    """Two-sided p-value of so many problems won and lost, were each a fair coin; exact at any size."""
    flips, ways, tail = better + worse, 1, 0
    for k in range(min(better, worse) + 1):
        tail += ways
        ways = ways * (flips - k) // (k + 1)
    # One division of whole numbers: rounded once, however large they are.
    return min(1.0, float(2 * tail / (1 << flips)))


def permutation(differences: Scores, *, seed: int) -> float:
    """Two-sided p-value of the mean difference under random signs; all of them where there are few, else a sample."""
    moved = differences[differences != 0]
    if len(moved) == 0:
        return 1.0
    observed = abs(float(moved.sum()))
    # Sums of the same numbers in another order differ in their last digits.
    least = observed - 1e-9 * float(np.abs(moved).sum())
    if len(moved) <= 13:
        signs = 1 - 2 * ((np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved))) & 1)
        return float(np.mean(np.abs(signs @ moved) >= least))
    return _sampled(moved, least, seed=seed)


def _sampled(moved: Scores, least: float, *, seed: int) -> float:
    generator = np.random.Generator(np.random.Philox(seed))
    rows = max(1, CHUNK // len(moved))
    hits = 0
    for first in range(0, RESAMPLES, rows):
        signs = 1.0 - 2.0 * generator.integers(0, 2, (min(rows, RESAMPLES - first), len(moved)))
        hits += int((np.abs(signs @ moved) >= least).sum())
    # The observed signs are one of the draws, so the p-value is never 0.
    return (hits + 1) / (RESAMPLES + 1)
