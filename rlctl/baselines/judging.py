"""Are runs worse than their baseline: exactly for what is counted, as paired ratios for time, by problem for the score.

`costs.py` has what is compared of a step's time; `estimating.py` says how much more that is now, and how surely.

The verdict asks for an effect that matters, and not only for one that is not 0: regression where the interval lies
above 0 and the estimate is nearer to EFFECT than to nothing, pass where the interval excludes EFFECT, else
inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any, Literal

from rlctl import statistics
from rlctl.baselines.costs import KINDS, PHASES, circumstances, cost, waited
from rlctl.baselines.estimating import Belief, Estimate, Measured, estimate, trimmed_mean
from rlctl.baselines.file import WARMUP, Baseline
from rlctl.baselines.record import COUNTS, RESULTS, Record, Step

Outcome = Literal["pass", "changed", "regression", "inconclusive"]

EFFECT = 0.10
"""The slow-down that must not be missed, as a fraction of the time; an estimate below half of it is none."""
SMALLEST = EFFECT / 2
SMALLEST_SCORE = 0.05
MIN_WINDOW = 8
"""Steps after the warm-up that a judgement needs: of fewer, a fifth trimmed at each end leaves too little."""
RUN_SPREAD = 0.03
"""Standard deviation of a run as a whole, as a fraction of its time, with one thread: what is believed before the
baseline's runs are seen. benchmarks/baseline_trials.py puts it to the test."""
RUN_SPREAD_UNPAIRED = 0.15
"""The same for seconds without a reference beside them: such a machine drifts by a third within an hour."""


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

    def estimate(
        self,
        figure: Callable[[Step], float | None],
        *,
        spread: float,
        lasting: float = 0.0,
        beside: Callable[[Step], Sequence[float]] = lambda _: (),
        beliefs: Sequence[Belief] = (),
    ) -> Estimate | None:
        """How much more the exponential of `figure` is now, allowing for what stood `beside` it.

        None where a step has no such figure.
        """
        before, now = (_measured(runs, self.window, figure, beside) for runs in (self.before, self.now))
        return estimate(before, now, spread=spread, lasting=lasting, beliefs=beliefs) if before and now else None


def _by_number(run: Record) -> dict[int, Step]:
    return {step.step: step for step in run.steps}


def _measured(
    runs: Sequence[Mapping[int, Step]],
    window: Sequence[int],
    figure: Callable[[Step], float | None],
    beside: Callable[[Step], Sequence[float]],
) -> list[Measured]:
    """None of them where a step has no such figure."""
    steps = [[run[number] for number in window] for run in runs]
    figures = [[value for step in of if (value := figure(step)) is not None] for of in steps]
    if any(len(values) < len(window) for values in figures):
        return []
    circumstances = [[trimmed_mean(values).value for values in zip(*map(beside, of), strict=True)] for of in steps]
    return [Measured(*both) for both in zip(figures, circumstances, strict=True)]


def _count(words: str, name: str, pairs: Pairs) -> Finding:
    def figure(step: Step) -> Any:
        return getattr(step, name)

    if pairs.repeatable(figure):
        return _exact(words, figure, pairs)
    shares = pairs.estimate(lambda step: math.log(figure(step)) if figure(step) else None, spread=0.0)
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


def _speeds(pairs: Pairs) -> Iterator[Finding]:
    paired = all(step.reference.keys() >= set(KINDS) for run in (*pairs.before, *pairs.now) for step in run.values())
    spread = RUN_SPREAD if paired else RUN_SPREAD_UNPAIRED
    for name, phase in PHASES.items():
        figure = partial(cost, name=name, phase=phase, paired=paired)
        beside = partial(circumstances, name=name, paired=paired)
        lasting = phase.lasting * min(1.0, _waited_most(pairs, name))
        beliefs = phase.beliefs(paired=paired)
        more = pairs.estimate(figure, spread=spread, lasting=lasting, beside=beside, beliefs=beliefs)
        if more is None:
            why = "some steps took no time that could be measured, or did no work"
            yield Finding(phase.words, "inconclusive", why)
            continue
        alone = "" if paired else "; no reference work beside it, so an hour's drift counts as noise"
        yield Finding(phase.words, _speed_outcome(more), _percent(more) + alone, *more)


def _not_all_alike(speeds: list[Finding]) -> list[Finding]:
    """Unrelated phases that slow down together tell of a machine that treats the reference work otherwise."""
    least, most = (of((finding.value or 0.0) for finding in speeds) for of in (min, max))
    if least < max(SMALLEST, most / 2):
        return speeds
    why = "; every phase alike, as when the machine and not the code has changed"
    return [
        replace(finding, outcome="inconclusive", why=finding.why + why) if finding.outcome == "regression" else finding
        for finding in speeds
    ]


def _waited_most(pairs: Pairs, phase: str) -> float:
    """On the side that waited for longer."""
    sides = ([waited(run[n], phase) for run in runs for n in pairs.window] for runs in (pairs.before, pairs.now))
    return max(trimmed_mean(values).value for values in sides)


def _speed_outcome(more: Estimate) -> Outcome:
    if more.low > 0 and more.value >= SMALLEST:
        return "regression"
    return "pass" if more.high < EFFECT else "inconclusive"


def _percent(more: Estimate) -> str:
    return f"{100 * more.value:+.1f} % ({100 * more.low:+.1f} to {100 * more.high:+.1f} %)"
