"""What an evaluation says: the metrics of training's evaluations, each with its interval, and majority votes.

An accuracy is that of the first reward, the task; every figure is a mean over problems. A completion whose reward
failed has no score: it is left out and counted, and so is a problem of which too few others are left.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlctl import report, statistics
from rlctl.report import Metrics
from rlctl.rewards import RewardSet
from rlctl.statistics import Comparison, Interval
from rlctl.types import Rollout

Group = Sequence[Rollout]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One model on one set of problems: metrics with training's names, and intervals of the `val-core` ones."""

    model: str
    num_problems: int
    wanted_problems: int
    n: int
    metrics: Metrics
    intervals: Mapping[str, Interval]
    scores: Mapping[str, Mapping[str, float]]
    """Source -> problem id -> mean score of the task."""
    notes: Sequence[str] = field(default_factory=tuple)
    sampling: Mapping[str, float] = field(default_factory=dict)
    """How completions were sampled, for who compares with it later."""

    @property
    def whole(self) -> bool:
        return self.num_problems == self.wanted_problems


def summarise(
    model: str,
    groups: Sequence[Group],
    *,
    rewards: RewardSet,
    wanted: int,
    seconds: float,
    seed: int,
    notes: Sequence[str] = (),
    sampling: Mapping[str, float] | None = None,
) -> Evaluation:
    """The evaluation of `groups`, [P][n] rollouts, of `wanted` problems."""
    task = rewards.rewards[0].name
    metrics = report.evaluation_metrics(groups, task=task, seconds=seconds)
    intervals: dict[str, Interval] = {}
    scores: dict[str, dict[str, float]] = {}
    for source, own in by_source(groups).items():
        scores[source] = problem_scores(own, task)
        for name, values in _figures(own, rewards).items():
            if values:
                intervals[f"val-core/{source}/{name}"] = statistics.interval(values, seed=seed)
    metrics |= {name: one.value for name, one in intervals.items()}
    n = len(groups[0]) if groups else 0
    return Evaluation(model, len(groups), wanted, n, metrics, intervals, scores, notes, sampling or {})


def by_source(groups: Sequence[Group]) -> dict[str, list[Group]]:
    sources: dict[str, list[Group]] = {}
    for group in groups:
        sources.setdefault(group[0].problem.source or "data", []).append(group)
    return dict(sorted(sources.items()))


def problem_scores(groups: Sequence[Group], task: str) -> dict[str, float]:
    """The mean score of the task of each problem that has one."""
    means = ((group[0].problem.id, report.mean(r.scores[task] for r in group if task in r.scores)) for group in groups)
    return {name: score for name, score in means if score is not None}


def _figures(groups: Sequence[Group], rewards: RewardSet) -> dict[str, list[float]]:
    """Every figure that gets an interval, as one number a problem."""
    task, n = rewards.rewards[0].name, len(groups[0])
    figures = {
        f"acc/mean@{n}": list(problem_scores(groups, task).values()),
        f"reward/mean@{n}": _known(report.mean(r.reward for r in group) for group in groups),
    }
    for k in report.powers_of_two(n):
        figures[f"pass@{k}"] = _known(report.solved_by(group, task, k) for group in groups)
    answer_of = getattr(rewards.rewards[0].function, "answer", None)
    if n > 1 and answer_of is not None:
        figures[f"acc/maj@{n}"] = [_majority_score(group, task, answer_of) for group in groups]
    return figures


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _majority_score(group: Group, task: str, answer_of: Any) -> float:
    """The score of the completion that the majority answers like; 0 when no completion has an answer."""
    answers: list[Hashable | None] = [answer_of(rollout.problem, rollout.text) for rollout in group]
    chosen = statistics.majority(answers)
    return 0.0 if chosen is None else group[chosen].scores.get(task, 0.0)


@dataclass(frozen=True, slots=True)
class Paired:
    """B against A on the problems of one source that both have."""

    source: str
    comparison: Comparison
    only_in_one: int


def compare(
    first: Mapping[str, Mapping[str, float]], second: Mapping[str, Mapping[str, float]], *, seed: int
) -> list[Paired]:
    """[source -> problem -> score] of A and of B -> a paired test for each source that both have problems of."""
    pairs = []
    for source in sorted(set(first) & set(second)):
        shared = [name for name in first[source] if name in second[source]]
        if not shared:
            continue
        comparison = statistics.compare(
            [first[source][name] for name in shared], [second[source][name] for name in shared], seed=seed
        )
        apart = len(first[source]) + len(second[source]) - 2 * len(shared)
        pairs.append(Paired(source, comparison, apart))
    return pairs
