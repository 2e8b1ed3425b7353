"""How much more a figure is now than in the baseline: runs are what is counted, steps only what a run is measured by.

A process as a whole lies some percent off, where its memory happens to lie and whoever computes beside it, and no
number of its steps shows that. So several runs stand on either side, and the interval comes from how far these lie
apart:

1. Step k of every run did the same work, so each is compared with the usual step k, the baseline's median. A run's
   centre is the trimmed mean of these differences: now and then a step meets a neighbour.
2. Neighbours hit the engine's phases harder than the reference beside them, and a thread that has waited for a
   processor finds its caches cold. How much that is for each is estimated from the centres and the circumstances of
   each side's runs, against what is believed of it (ridge regression, Hoerl & Kennard 1970,
   https://doi.org/10.1080/00401706.1970.10488634, towards that belief, as an analysis of covariance), and taken off.
3. The effect is the trimmed mean of the centres now less that of the baseline's: now and then a whole run is off.
4. What a trimmed mean is worth follows from winsorised deviations (Tukey & McLaughlin 1963; for two groups Yuen 1974,
   https://doi.org/10.1093/biomet/61.1.165). Few runs tell little of a spread, so it is moderated: the baseline's
   towards what is believed of it, that of the runs now towards the baseline's (Smyth 2004,
   https://doi.org/10.2202/1544-6115.1027, section 4: a weighted mean of variances, weights as degrees of freedom).
   That of the runs now is not less than they show: neighbours that come and go set them further apart.
5. Neighbours stay: of what a run is off, the next run's share is `lasting`, and more runs in a row do not average it
   out (the design effect of cluster samples, Kish 1965, Survey Sampling, section 5.4). With n runs a side's variance is
   not 1 / n of a run's but 1 / n + lasting.
6. The degrees of freedom of the two sides' sum are Satterthwaite's (1946, https://doi.org/10.2307/3002019).

Letters: R runs, K circumstances.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, median
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

LEVEL = 0.98
"""Of the intervals: three times are judged at once, and twenty times of unchanged runs should raise no alarm."""
TRIM = 0.2
RUN_SPREAD_WEIGHT = 6
"""How many runs' worth of knowledge a belief about the spread of runs is."""
TINY = 1e-12
"""A variance, in squared logarithms, that is as good as none."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """How much more, as a fraction, with the ends of the interval."""

    value: float
    low: float
    high: float

    def __iter__(self) -> Iterator[float]:
        yield from (self.value, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Centre:
    """A trimmed mean. `variance` is its own; so many `freedom` degrees it is known with."""

    value: float
    variance: float
    freedom: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One run, in logarithms: the figure of every step, and the circumstances of the run, as many in every run."""

    figures: Sequence[float]
    circumstances: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Belief:
    """How much of a circumstance the figure feels, before any run is seen: a normal distribution."""

    mean: float
    deviation: float


def estimate(
    before: Sequence[Measured],
    now: Sequence[Measured],
    *,
    spread: float,
    lasting: float = 0.0,
    beliefs: Sequence[Belief] = (),
) -> Estimate:
    """Of runs of the same steps.

    `spread` is what is believed of the standard deviation of whole runs before seeing any, in logarithms; `lasting`
    what runs in a row have in common of their variance, as a share of it. `beliefs` are of the circumstances, in order.
    """
    usual = [median(values) for values in zip(*(run.figures for run in before), strict=True)]
    old, new = _side(before, usual), _side(now, usual)
    believed = spread**2 + fmean((*old.step_variances, *new.step_variances))
    felt = _felt(old, new, variance=believed, beliefs=beliefs)
    old_run = old.typical_run(felt, believed=believed, weight=RUN_SPREAD_WEIGHT)
    moderated = new.typical_run(felt, believed=old_run.variance, weight=old_run.freedom)
    new_run = replace(moderated, variance=max(moderated.variance, new.variance_seen(felt)))
    sides = ((old, old_run), (new, new_run))
    parts = [(run.variance * (1 / len(side.y_R) + lasting), run.freedom) for side, run in sides]
    variance = sum(part for part, _ in parts) + felt.variance(new.x_RK.mean(axis=0) - old.x_RK.mean(axis=0))
    reach = t_quantile((1 + LEVEL) / 2, satterthwaite(*parts)) * math.sqrt(variance)
    effect = new_run.value - old_run.value
    return Estimate(*(math.expm1(value) for value in (effect, effect - reach, effect + reach)))


@dataclass(frozen=True, slots=True)
class _Side:
    """Centres, circumstances, and what steps alone make uncertain of the centre."""

    y_R: Array
    x_RK: Array
    step_variances: list[float]

    def typical_run(self, felt: _Felt, *, believed: float, weight: int) -> Centre:
        """Where a run lies without what is felt, and the variance of one run, moderated towards what is believed."""
        centre = self._centre(felt)
        freedom = weight + centre.freedom
        variance = (weight * believed + centre.freedom * self.variance_seen(felt)) / freedom
        return Centre(centre.value, variance, freedom)

    def variance_seen(self, felt: _Felt) -> float:
        """Of one run, by these runs alone."""
        return self._centre(felt).variance * len(self.y_R)

    def _centre(self, felt: _Felt) -> Centre:
        return trimmed_mean((self.y_R - self.x_RK @ felt.shares_K).tolist())


def _side(runs: Sequence[Measured], usual: Sequence[float]) -> _Side:
    apart = [[mine - typical for mine, typical in zip(run.figures, usual, strict=True)] for run in runs]
    centres = [trimmed_mean(steps) for steps in apart]
    x_RK = np.array([run.circumstances for run in runs], dtype=float).reshape(len(runs), -1)
    return _Side(np.array([centre.value for centre in centres]), x_RK, [centre.variance for centre in centres])


@dataclass(frozen=True, slots=True)
class _Felt:
    """How much of each circumstance the figure feels, and how uncertain that is."""

    shares_K: Array
    covariance_KK: Array

    def variance(self, apart_K: Array) -> float:
        return float(apart_K @ self.covariance_KK @ apart_K)


def _felt(*sides: _Side, variance: float, beliefs: Sequence[Belief]) -> _Felt:
    """From what runs of the same side differ in; `variance` is that of a run's centre."""
    mean_K = np.array([belief.mean for belief in beliefs])
    deviation_K = np.array([belief.deviation for belief in beliefs])
    x_RK = np.concatenate([side.x_RK - side.x_RK.mean(axis=0) for side in sides])
    y_R = np.concatenate([side.y_R - side.y_R.mean() for side in sides])
    weights_KK = x_RK.T @ x_RK + max(variance, TINY) * np.diag(1 / np.square(deviation_K))
    inverse_KK = np.linalg.inv(weights_KK)
    return _Felt(mean_K + inverse_KK @ x_RK.T @ (y_R - x_RK @ mean_K), variance * inverse_KK)


def satterthwaite(*parts: tuple[float, int]) -> float:
    """Degrees of freedom of a sum of (variance, degrees of freedom); those of the first where all are 0."""
    total = sum(variance for variance, _ in parts)
    if not total:
        return parts[0][1]
    return total**2 / sum(variance**2 / freedom for variance, freedom in parts)


def trimmed_mean(values: Sequence[float]) -> Centre:
    """Without a fifth at each end; one value alone tells nothing of its variance, which is 0 with no freedom."""
    ordered, cut = sorted(values), int(TRIM * len(values))
    kept = ordered[cut : len(ordered) - cut]
    if len(values) == 1:
        return Centre(kept[0], 0.0, 0)
    winsorised = [kept[0]] * cut + kept + [kept[-1]] * cut
    middle = fmean(winsorised)
    variance = sum((value - middle) ** 2 for value in winsorised) / (len(winsorised) - 1)
    return Centre(fmean(kept), variance / len(values) / (1 - 2 * cut / len(values)) ** 2, len(kept) - 1)


def t_quantile(level: float, freedom: float) -> float:
    """Student's t from the normal: Abramowitz & Stegun 26.7.5, within 1 % from 4 degrees of freedom on."""
    z = NormalDist().inv_cdf(level)
    terms = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))
