"""Try the rewards of a run before it: what they give, how long they take, and what they make of hostile texts.

`rlctl reward check` prints what is found here. A finding that does not hold is a reason not to train; one that could
not be judged says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlctl.rewards.base import NamedReward, RewardSet
from rlctl.rewards.golds import full_marks, gold_completions, has_full_marks, score_with
from rlctl.rewards.outcome import Outcome
from rlctl.rewards.probes import GOLD, HOSTILE, WRONG, probes
from rlctl.types import Problem

MANY_WRONG = 0.5
"""Share of wrong answers with full marks above which a reward is not worth much; some may be right by chance."""


@dataclass(frozen=True, slots=True)
class Row:
    """What texts of one kind got."""

    kind: str
    count: int
    low: float | None
    mean: float | None
    high: float | None
    full: int
    failures: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Finding:
    """`holds` None: could not be judged."""

    name: str
    holds: bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a reward gives the completions that a run has kept."""

    count: int
    read: int | None
    """Completions in which it could read an answer; None when it does not say."""
    forms: Mapping[str, int]
    mean: float | None
    recorded_mean: float | None
    changed: int
    """Completions whose score is not the recorded one."""
    failures: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RewardReport:
    """All that was found out about one reward. Latencies are of a call, in ms."""

    name: str
    full_marks: float
    rows: Sequence[Row]
    latency_ms: Mapping[str, float]
    findings: Sequence[Finding]
    recorded: Recorded | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion that a run has kept, with the scores it got there."""

    problem: Problem
    completion: str
    scores: Mapping[str, float] = field(default_factory=dict)


async def check_reward(
    reward_set: RewardSet, reward: NamedReward, problems: Sequence[Problem], *, samples: Sequence[Sample] | None
) -> RewardReport:
    """Try one reward of the set. Raises RewardError when it returns something else than a number."""
    made = probes(reward, problems)
    items = [(probe.problem, probe.text) for probe in made]
    outcomes = await score_with(reward_set, reward, items)
    backwards = (await score_with(reward_set, reward, items[::-1]))[::-1]
    rows = [
        _row(kind, reward, [outcome for probe, outcome in zip(made, outcomes, strict=True) if probe.kind == kind])
        for kind in dict.fromkeys(probe.kind for probe in made)
    ]
    judged = gold_completions(reward, problems[:1]) is not None
    findings = [
        _golds(reward, rows, judged=judged),
        _wrong(reward, rows, judged=judged),
        _steady(outcomes, backwards),
        _scored(rows),
        _hostile(rows),
    ]
    recorded = None if samples is None else await _recorded(reward_set, reward, samples)
    latency = percentiles([outcome.seconds * 1000 for outcome in [*outcomes, *backwards]])
    return RewardReport(reward.name, full_marks(reward), rows, latency, findings, recorded)


def _row(kind: str, reward: NamedReward, outcomes: Sequence[Outcome]) -> Row:
    scores = [outcome.result.score for outcome in outcomes if outcome.result]
    return Row(
        kind,
        len(outcomes),
        min(scores, default=None),
        sum(scores) / len(scores) if scores else None,
        max(scores, default=None),
        sum(has_full_marks(reward, outcome) for outcome in outcomes),
        dict(Counter(outcome.failure.kind for outcome in outcomes if outcome.failure)),
    )


def _golds(reward: NamedReward, rows: Sequence[Row], *, judged: bool) -> Finding:
    name = "gold answers get full marks"
    if not judged:
        return Finding(name, None, "the reward does not say how a right answer looks: give it a gold_completion")
    row = next((row for row in rows if row.kind == GOLD), None)
    if row is None:
        return Finding(name, None, "no completion can be made of these gold answers")
    return Finding(name, row.full == row.count, f"{row.full} of {row.count} get {full_marks(reward):g}")


def _wrong(reward: NamedReward, rows: Sequence[Row], *, judged: bool) -> Finding:
    name = "wrong answers do not"
    row = next((row for row in rows if row.kind == WRONG), None)
    if not judged or row is None:
        return Finding(name, None, "it is not known what a wrong answer looks like")
    if row.count == 1:
        return Finding(name, None, "one problem has no other's answer to try")
    return Finding(name, row.full <= MANY_WRONG * row.count, f"{row.full} of {row.count} get {full_marks(reward):g}")


def _steady(outcomes: Sequence[Outcome], backwards: Sequence[Outcome]) -> Finding:
    """One score a text, in the order of the texts: the same texts backwards give the same scores backwards."""
    both = [(one.result, other.result) for one, other in zip(outcomes, backwards, strict=True)]
    pairs = [(one.score, other.score) for one, other in both if one and other]
    changed = sum(one != other for one, other in pairs)
    name = "one score a text, in order"
    if changed:
        return Finding(name, None, f"{changed} of {len(pairs)} texts got another score in a second call")
    if not pairs:
        return Finding(name, None, "no text got a score twice")
    return Finding(name, True, f"{len(pairs)} texts got the same scores forwards and backwards")


def _scored(rows: Sequence[Row]) -> Finding:
    usual = [row for row in rows if row.kind != HOSTILE]
    failures: Counter[str] = sum((Counter(row.failures) for row in usual), Counter())
    count = sum(row.count for row in usual)
    return Finding("every usual text gets a score", not failures, f"{_kinds(failures)} in {count} calls")


def _hostile(rows: Sequence[Row]) -> Finding:
    """Texts made to break a grader may cost their own call; a run leaves such completions out and counts them."""
    name = "texts made to break it get a score"
    row = next(row for row in rows if row.kind == HOSTILE)
    if row.failures:
        return Finding(name, None, f"{_kinds(row.failures)} in {row.count} calls; a run leaves such completions out")
    return Finding(name, True, f"no failure in {row.count} calls")


def _kinds(failures: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in failures.items()) or "no failure"


async def _recorded(reward_set: RewardSet, reward: NamedReward, samples: Sequence[Sample]) -> Recorded:
    outcomes = await score_with(reward_set, reward, [(sample.problem, sample.completion) for sample in samples])
    results = [outcome.result for outcome in outcomes if outcome.result]
    says = [result.parsed for result in results if result.parsed is not None]
    before = [sample.scores.get(reward.name) for sample in samples]
    known = [score for score in before if score is not None]
    changed = sum(
        score is not None and (outcome.result is None or outcome.result.score != score)
        for score, outcome in zip(before, outcomes, strict=True)
    )
    return Recorded(
        len(samples),
        sum(says) if says else None,
        dict(Counter(result.form or "none" for result in results)) if says else {},
        sum(result.score for result in results) / len(results) if results else None,
        sum(known) / len(known) if known else None,
        changed,
        dict(Counter(outcome.failure.kind for outcome in outcomes if outcome.failure)),
    )


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and the maximum, each a value that was measured."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return {**{f"p{p}": ordered[round(last * p / 100)] for p in (50, 95, 99)}, "max": ordered[last]}
