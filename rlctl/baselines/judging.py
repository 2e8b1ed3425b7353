"""Is a run worse than its baseline: exactly for what is counted, as paired ratios for time, by problem for the score.

A step's cost is the logarithm of its own seconds a unit of work (FLOPs of the update, tokens elsewhere), over the
seconds of the reference work beside it. The same step of the baseline did the same work, so costs are compared step by
step and their differences are what is averaged. Two things make them uncertain, and both are in the interval:

* steps differ: the standard error of a trimmed mean over the steps (Tukey & McLaughlin 1963, from winsorised
  deviations), since now and then a step meets a neighbour;
* runs differ as wholes, whatever their number of steps: the spread between the baseline's runs. Three runs tell little
  of a spread, so it is moderated towards what is believed of it (Smyth 2004, https://doi.org/10.2202/1544-6115.1027,
  section 4: a weighted mean of variances, the prior's weight as degrees of freedom).

The verdict asks for an effect that matters, and not only for one that is not 0: regression where the interval lies
above 0 and the estimate is nearer to EFFECT than to nothing, pass where the interval excludes EFFECT, else
inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist, fmean, median
from typing import Any, Literal

from rlctl import statistics
from rlctl.baselines.file import WARMUP, Baseline
from rlctl.baselines.record import COUNTS, RESULTS, Record, Step

Outcome = Literal["pass", "changed", "regression", "inconclusive"]

EFFECT = 0.10
"""The slow-down that must not be missed, as a fraction of the time; an estimate below half of it is none."""
SMALLEST = EFFECT / 2
SMALLEST_SCORE = 0.05
LEVEL = 0.98
"""Of the intervals: three times are judged in every run, and twenty unchanged ones should raise no alarm."""
MIN_WINDOW = 8
"""Steps after the warm-up that a judgement needs: of fewer, a fifth trimmed at each end leaves too little."""
TRIM = 0.2
RUN_SPREAD = 0.015
"""Standard deviation of a run as a whole, as a fraction of its time, with one thread: what is believed before the
baseline's runs are seen. benchmarks/baseline_trials.py puts it to the test."""
RUN_SPREAD_UNPAIRED = 0.15
"""The same for seconds without a reference beside them: such a machine drifts by a third within an hour."""
RUN_SPREAD_WEIGHT = 6
"""How many runs' worth of knowledge that is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one metric. `low` to `high` is the interval around `value`: fractions of the time, or a score."""

    metric: str
    outcome: Outcome
    why: str
    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """Something in which the run is not the one that the baseline was made of."""

    name: str
    before: Any
    now: Any

    def line(self) -> str:
        return f"{self.name}: {_shown(self.before)} in the baseline, {_shown(self.now)} now"


@dataclass(frozen=True, slots=True)
class Judgement:
    """`differences` make a comparison meaningless, so there are findings or differences; `notes` do not."""

    findings: tuple[Finding, ...]
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        found = {finding.outcome for finding in self.findings}
        for outcome in ("regression", "changed", "inconclusive"):
            if outcome in found:
                return outcome
        return "inconclusive" if self.differences or not found else "pass"

    @property
    def exit_code(self) -> int:
        return {"pass": 0, "changed": 4, "regression": 4, "inconclusive": 5}[self.outcome]


def judge(baseline: Baseline, runs: Sequence[Record]) -> Judgement:
    """Every metric of the runs, or what makes them incomparable."""
    differing = list(differences(baseline, runs[0]))
    newer = [d for d in differing if d.name == "versions.rlctl"]
    differing = [d for d in differing if d not in newer]
    notes = tuple(f"{d.line()}; that is what is compared" for d in newer)
    if differing:
        return Judgement((), tuple(differing), notes)
    pairs = Pairs(baseline.runs, tuple(runs))
    if len(pairs.window) < MIN_WINDOW:
        why = f"{len(pairs.window)} steps after {WARMUP} of warm-up are too few, {MIN_WINDOW} are needed"
        return Judgement((Finding("all metrics", "inconclusive", why),), (), notes)
    counts = [_count(words, name, pairs) for words, name in COUNTS.items()]
    return Judgement((*counts, *_results(pairs, same_code=not newer), *_not_all_alike(list(_speeds(pairs)))), (), notes)


def differences(baseline: Baseline, run: Record) -> Iterator[Difference]:
    """Key and recipe, by name, the key first."""
    for before, now in ((_flat(baseline.key), _flat(run.key)), (dict(baseline.recipe), _plain(run.recipe))):
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                yield Difference(name, before.get(name), now.get(name))


def _flat(key: Mapping[str, Any]) -> dict[str, Any]:
    versions = key.get("versions")
    named = {f"versions.{name}": v for name, v in versions.items()} if isinstance(versions, Mapping) else {}
    return {name: value for name, value in key.items() if name != "versions"} | named


def _plain(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """As a file would give it back: tuples are lists there."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in recipe.items()}


def _shown(value: Any) -> str:
    return "absent" if value is None else f"{value!r}"


class Pairs:
    """The baseline's runs and the ones to judge, step by step."""

    def __init__(self, before: Sequence[Record], now: Sequence[Record]) -> None:
        self.before, self.now = [_by_number(run) for run in before], [_by_number(run) for run in now]
        self.steps = sorted(set.intersection(*(set(run) for run in (*self.before, *self.now))))
        self.window = [number for number in self.steps if number > WARMUP]

    def repeatable(self, figure: Callable[[Step], Any]) -> bool:
        """Whether the runs of the baseline agree on it in every step."""
        return all(len({figure(run[number]) for run in self.before}) == 1 for number in self.steps)

    def first_difference(self, figure: Callable[[Step], Any]) -> tuple[int, Any, Any] | None:
        """(step, in the baseline, now) where a run first differs from the baseline's first."""
        for number in self.steps:
            for run in self.now:
                before, now = figure(self.before[0][number]), figure(run[number])
                if before != now:
                    return number, before, now
        return None


def _by_number(run: Record) -> dict[int, Step]:
    return {step.step: step for step in run.steps}


def _count(words: str, name: str, pairs: Pairs) -> Finding:
    def figure(step: Step) -> Any:
        return getattr(step, name)

    if pairs.repeatable(figure):
        return _exact(words, figure, pairs)
    shares = Paired(pairs, lambda step: math.log(figure(step)) if figure(step) else None, spread=0.0).estimate()
    if shares is None:
        return Finding(words, "inconclusive", "some steps have none")
    why = f"the baseline's own runs differ; {_percent(shares)}"
    if shares.low < 0 < shares.high or abs(shares.value) < SMALLEST:
        inside = max(abs(shares.low), abs(shares.high)) < SMALLEST
        return Finding(words, "pass" if inside else "inconclusive", why, *shares)
    return Finding(words, "changed", why, *shares)


def _exact(words: str, figure: Callable[[Step], Any], pairs: Pairs) -> Finding:
    found = pairs.first_difference(figure)
    if found is None:
        return Finding(words, "pass", f"the same in all {len(pairs.steps)} steps")
    number, before, now = found
    return Finding(words, "changed", f"first differs at step {number}: {before!r} in the baseline, {now!r} now")


def _results(pairs: Pairs, *, same_code: bool) -> Iterator[Finding]:
    """Numbers that a CPU repeats to the last bit where code and versions are the same; else the score's statistics."""
    figures = {words: (lambda step, name=name: getattr(step, name)) for words, name in RESULTS.items()}
    if all(pairs.repeatable(figure) for figure in figures.values()):
        findings = [_exact(words, figure, pairs) for words, figure in figures.items()]
        if same_code or all(finding.outcome == "pass" for finding in findings):
            yield from findings
            return
    yield _score(pairs)


def _score(pairs: Pairs) -> Finding:
    """By problem: what each scored on average in the baseline's runs and in these."""
    before, now = _mean_scores(pairs.before, pairs.window), _mean_scores(pairs.now, pairs.window)
    shared = sorted(before.keys() & now.keys())
    if len(shared) < 2:
        return Finding("score", "inconclusive", f"{len(shared)} problems were scored on both sides")
    test = statistics.compare([before[p] for p in shared], [now[p] for p in shared], seed=0)
    apart = test.difference
    low = apart.value if apart.low is None else apart.low
    high = apart.value if apart.high is None else apart.high
    outcome: Outcome = "inconclusive"
    if low > -SMALLEST_SCORE:
        outcome = "pass"
    elif high < 0 and apart.value <= -SMALLEST_SCORE:
        outcome = "regression"
    why = f"{apart.value:+.3f} over {len(shared)} problems ({low:+.3f} to {high:+.3f}, p = {test.p_value:.2g})"
    return Finding("score", outcome, why, apart.value, low, high)


def _mean_scores(runs: Sequence[Mapping[int, Step]], window: Sequence[int]) -> dict[tuple[int, str], float]:
    found: dict[tuple[int, str], list[float]] = {}
    for run in runs:
        for number in window:
            for problem, score in run[number].scores.items():
                found.setdefault((number, problem), []).append(score)
    return {place: fmean(values) for place, values in found.items()}


WORK: Mapping[str, tuple[str, Callable[[Step], float | None]]] = {
    "update": ("update (MFU)", lambda step: step.flops_update),
    "sampling": ("sampling (sampled tok/s)", lambda step: step.sampled_tokens),
    "step": ("whole step (tok/s)", lambda step: step.prompt_tokens + step.sampled_tokens),
}


def _speeds(pairs: Pairs) -> Iterator[Finding]:
    paired = all(step.reference for run in (*pairs.before, *pairs.now) for step in run.values())
    for phase, (words, work) in WORK.items():
        spread = RUN_SPREAD if paired else RUN_SPREAD_UNPAIRED
        estimate = Paired(pairs, partial(cost, phase=phase, work=work), spread=spread).estimate()
        if estimate is None:
            yield Finding(words, "inconclusive", "some steps took no time that could be measured, or did no work")
            continue
        alone = "" if paired else "; no reference work beside it, so an hour's drift counts as noise"
        yield Finding(words, _speed_outcome(estimate), _percent(estimate) + alone, *estimate)


def _not_all_alike(speeds: list[Finding]) -> list[Finding]:
    """Unrelated phases that slow down together tell of a machine that treats the reference work otherwise."""
    if not all(finding.outcome == "regression" for finding in speeds):
        return speeds
    why = "; every phase alike, as when the machine and not the code has changed"
    return [replace(finding, outcome="inconclusive", why=finding.why + why) for finding in speeds]


def cost(step: Step, *, phase: str, work: Callable[[Step], float | None]) -> float | None:
    """Logarithm of the own seconds a unit of work, over the reference's beside it where there is one."""
    seconds, units = step.seconds.get(phase, 0.0), work(step)
    if not units or seconds <= 0:
        return None
    readings = step.reference.get(phase) or [value for of in step.reference.values() for value in of] or [1.0]
    return math.log(seconds / units) - fmean(map(math.log, readings))


def _speed_outcome(estimate: Estimate) -> Outcome:
    if estimate.low > 0 and estimate.value >= SMALLEST:
        return "regression"
    return "pass" if estimate.high < EFFECT else "inconclusive"


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:+.1f} % ({100 * estimate.low:+.1f} to {100 * estimate.high:+.1f} %)"


@dataclass(frozen=True, slots=True)
class Estimate:
    """How much more, as a fraction, with the ends of the interval."""

    value: float
    low: float
    high: float

    def __iter__(self) -> Iterator[float]:
        yield from (self.value, self.low, self.high)


class Paired:
    """A figure of every step in the window, now against the baseline's runs in the same step, in logarithms.

    Of the baseline's runs it is the median: what one of them met in that step is not what the step costs.

    `spread` is what is believed of the standard deviation of whole runs before seeing any.
    """

    def __init__(self, pairs: Pairs, figure: Callable[[Step], float | None], *, spread: float) -> None:
        self.before = [[figure(run[number]) for number in pairs.window] for run in pairs.before]
        self.now = [[figure(run[number]) for number in pairs.window] for run in pairs.now]
        self.spread = spread

    def estimate(self) -> Estimate | None:
        """None where a step has no such figure."""
        before, now = _whole(self.before), _whole(self.now)
        if before is None or now is None:
            return None
        usual = [median(values) for values in zip(*before, strict=True)]
        mine = [fmean(values) for values in zip(*now, strict=True)]
        centre, error, freedom = trimmed_mean([a - b for a, b in zip(mine, usual, strict=True)])
        runs = self._spread_of_runs(before, usual) * math.sqrt(1 / len(now) + 1 / len(before))
        reach = t_quantile((1 + LEVEL) / 2, freedom) * math.hypot(error, runs)
        return Estimate(*(math.expm1(value) for value in (centre, centre - reach, centre + reach)))

    def _spread_of_runs(self, before: Sequence[Sequence[float]], usual: Sequence[float]) -> float:
        """Beyond what their steps explain, which is in the error of the mean already."""
        apart = [trimmed_mean([a - b for a, b in zip(run, usual, strict=True)]) for run in before]
        seen = max(0.0, sum(centre**2 - error**2 for centre, error, _ in apart))
        known = RUN_SPREAD_WEIGHT * self.spread**2 + seen
        return math.sqrt(known / (RUN_SPREAD_WEIGHT + len(before) - 1))


def _whole(rows: Sequence[Sequence[float | None]]) -> list[list[float]] | None:
    known = [[value for value in row if value is not None] for row in rows]
    return known if [len(row) for row in known] == [len(row) for row in rows] else None


def trimmed_mean(values: Sequence[float]) -> tuple[float, float, int]:
    """(mean without a fifth at each end, its standard error, degrees of freedom)."""
    ordered, cut = sorted(values), int(TRIM * len(values))
    kept = ordered[cut : len(ordered) - cut]
    winsorised = [kept[0]] * cut + kept + [kept[-1]] * cut
    middle = fmean(winsorised)
    variance = sum((value - middle) ** 2 for value in winsorised) / (len(winsorised) - 1)
    error = math.sqrt(variance / len(values)) / (1 - 2 * cut / len(values))
    return fmean(kept), error, len(kept) - 1


def t_quantile(level: float, freedom: int) -> float:
    """Student's t from the normal: Abramowitz & Stegun 26.7.5, within 1 % from 4 degrees of freedom on."""
    z = NormalDist().inv_cdf(level)
    terms = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))
