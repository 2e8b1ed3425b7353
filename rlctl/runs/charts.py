"""Which plots a report has: the metrics of docs/metrics.md by subject, and after them whatever else a run measured."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal

from rlctl.runfiles import STEP
from rlctl.runs.lines import Record, number
from rlctl.runs.reading import Run
from rlctl.runs.series import Series, names_of, series

MOST_CURVES = 8
"""Curves that can be told apart in one chart."""

Kind = Literal["lines", "shares"]
"""Curves, or shares of a whole stacked on each other."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Metrics in one picture, by name or glob. `scale` turns them into `unit`: 100 makes percent of a fraction."""

    title: str
    patterns: Sequence[str]
    unit: str = ""
    scale: float = 1.0
    log: bool = False
    kind: Kind = "lines"
    why: str = ""
    """What to look for, in a sentence."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A chart with the run's own numbers."""

    chart: Chart
    curves: tuple[Series, ...]
    """At most MOST_CURVES of them."""
    left_out: int = 0

    def scaled(self) -> list[Series]:
        """The curves in the chart's unit."""
        return [_scaled(one, self.chart.scale) for one in self.curves]


def _scaled(one: Series, scale: float) -> Series:
    values, low, high = (tuple(scale * value for value in some) for some in (one.values, one.low, one.high))
    return Series(one.name, one.steps, values, low, high)


@dataclass(frozen=True, slots=True)
class Subject:
    title: str
    charts: Sequence[Chart] = field(default_factory=tuple)


def _share(title: str, *patterns: str, why: str = "", kind: Kind = "lines") -> Chart:
    """Fractions, in percent."""
    return Chart(title, patterns, "%", 100.0, kind=kind, why=why)


SUBJECTS = (
    Subject(
        "Score and reward",
        (
            Chart("score and reward", ("score/mean", "reward/mean"), why="mean over a step's completions"),
            Chart("each reward", ("reward/*/mean",)),
            Chart("rewards that failed", ("reward/failed", "reward/failures/*"), "completions"),
            Chart("score by source", ("data/*/score/mean", "data/*/reward/mean")),
        ),
    ),
    Subject(
        "Learning signal",
        (
            _share(
                "groups by what was solved", "reward/solved_none", "reward/solved_some", "reward/solved_all",
                kind="shares", why="only groups solved by some of their samples teach",
            ),
            _share("groups without signal", "reward/frac_zero_signal", "data/*/frac_zero_signal"),
            Chart("advantages", ("advantages/min", "advantages/mean", "advantages/max")),
            Chart("odd groups", ("reward/shrunk_groups", "reward/identical_groups"), "groups"),
            Chart("dynamic sampling", ("rollout/*",), "groups"),
            Chart("curriculum", ("data/curriculum/*",), "problems"),
            Chart("groups by source", ("data/*/groups",), "groups"),
        ),
    ),
    Subject(
        "Lengths",
        (
            Chart("response length", ("response_length/min", "response_length/mean", "response_length/max"), "tokens"),
            _share("cut at the length limit", "response_length/clip_ratio"),
            Chart("prompt length", ("prompt_length/*",), "tokens"),
            Chart("response length by source", ("data/*/response_length/mean",), "tokens"),
        ),
    ),
    Subject(
        "Turns",
        (
            Chart("turns of the policy", ("num_turns/min", "num_turns/mean", "num_turns/max"), "a rollout"),
            _share("how rollouts ended", "environment/ended_by/*"),
            Chart("tool calls", ("environment/tool_calls/mean", "environment/tool_errors/mean"), "a rollout"),
            Chart("answers of the environment", ("environment/observation_tokens/mean",), "tokens a rollout"),
            Chart("answers that were cut", ("environment/answers_cut/mean",), "a rollout"),
        ),
    ),
    Subject(
        "Policy",
        (
            Chart("entropy", ("actor/entropy",), "nats a token"),
            Chart(
                "KL", ("actor/ppo_kl", "actor/kl_loss", "reward/kl/mean"), why="ppo_kl: old policy to new, nats a token"
            ),
            _share("clipped tokens", "actor/pg_clipfrac"),
            Chart(
                "sampler against trainer", ("training/rollout_probs_diff_mean", "training/rollout_probs_diff_max"),
                "probability", log=True, why="a mean above 0.01 means that they are not the same policy",
            ),
            Chart("gradient norm", ("actor/grad_norm",), why="before clipping"),
            Chart("loss", ("actor/loss", "actor/pg_loss"), why="on-policy about 0 by construction; watch the score"),
            Chart("learning rate", ("actor/lr",)),
            Chart("ratio from 1", ("actor/ratio_deviation_first", "actor/ratio_deviation_max")),
            Chart("updates", ("actor/updates", "actor/skipped_updates", "actor/empty_updates"), "a step"),
            _share("weights changed", "actor/weights_changed"),
            Chart("rows trained on", ("actor/train_rows",), "completions"),
            Chart("rollbacks", ("training/rollbacks",)),
            Chart("age of the samples", ("training/staleness_mean", "training/staleness_max"), "steps"),
        ),
    ),
    Subject(
        "Speed",
        (
            Chart("tokens a second", ("perf/tokens_per_s", "perf/sampled_tokens_per_s"), "tokens/s"),
            _share("MFU", "perf/mfu/actor", "perf/mfu/step", why="of the update, and of the whole step"),
            Chart("throughput of the update", ("perf/tflops_per_device",), "TFLOP/s a device"),
            Chart("FLOPs", ("perf/flops/*",), "TFLOP", 1e-12),
            Chart("seconds a step", ("timing_s/step", "timing_s/testing", "timing_s/save_checkpoint"), "s"),
            Chart("standing still", ("timing_s/wait_for_samples", "timing_s/wait_for_update"), "s"),
            _share("sampling beside training", "perf/overlap", why="of the shorter one's work, what was hidden"),
            Chart("memory", ("perf/max_memory_allocated_gb",), "GiB"),
            Chart("what sharing prompts saves", ("perf/dedup_factor",), "tokens delivered / computed"),
        ),
    ),
)  # fmt: skip
"""In the order of the page. Phases and evaluations have plots of their own."""

ELSEWHERE = (
    "timing_s/*", "val-*", "training/epoch", "training/weights_version", "perf/num_devices",
    "perf/peak_flops_per_device", "perf/tokens_per_s_per_device",
)  # fmt: skip
"""What the Gantt, the phases, the evaluations and the facts at the top show, or counts that only rise."""


def drawn(run: Run) -> Iterator[tuple[str, list[Drawn]]]:
    """(subject, its charts that have a number to draw); a metric is drawn in the first chart that asks for it."""
    left = names_of(run.steps)
    for subject in (*SUBJECTS, Subject("Other metrics", _others(left))):
        charts = []
        for chart in subject.charts:
            names = [name for pattern in chart.patterns for name in fnmatch.filter(left, pattern)]
            left = [name for name in left if name not in names]
            if names:
                curves = tuple(series(run.steps, name) for name in list(dict.fromkeys(names))[:MOST_CURVES])
                charts.append(Drawn(chart, curves, left_out=len(set(names)) - len(curves)))
        if charts:
            yield subject.title, charts


def _others(names: Sequence[str]) -> list[Chart]:
    """Every metric that no subject asks for, a chart each: their units are not known, so none can share one."""
    known = [pattern for subject in SUBJECTS for chart in subject.charts for pattern in chart.patterns]
    told = (*known, *ELSEWHERE)
    others = [name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in told)]
    return [Chart(name, (_literal(name),)) for name in others]


def _literal(name: str) -> str:
    """The glob that matches this name alone."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


PHASES = (
    ("gen", "sample"), ("reward", "score"), ("old_log_prob", "old log-probs"), ("ref", "reference"),
    ("update_actor", "update"), ("update_weights", "sync weights"),
)  # fmt: skip
"""(name in timing_s/, what it is) in the order in which a step does them."""


@dataclass(frozen=True, slots=True)
class Point:
    """An evaluation metric at a step, with its 95 % interval where there is one."""

    step: int
    value: float
    low: float | None
    high: float | None


def points(run: Run, name: str) -> list[Point]:
    """A core metric of evaluations. Intervals are Wilson's for a mean over problems, whose number is recorded.

    For scores of 0 and 1 and one completion a problem that is the interval; otherwise scores between 0 and 1 vary less
    than their mean allows, so that it is one that is too wide at most. None where a value is not between 0 and 1.
    Source: Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953.
    """
    source = name.removeprefix("val-core/").rsplit("/", 2 if name.rsplit("/", 1)[-1].startswith("mean@") else 1)[0]
    found = []
    for record in run.evaluations:
        value, count = number(record.get(name)), number(record.get(f"val-aux/{source}/num_problems"))
        if value is not None:
            reach = _wilson(value, count) if count and count >= 1 and 0 <= value <= 1 else (None, None)
            found.append(Point(record[STEP], value, *reach))
    return found


def _wilson(share: float, count: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf(0.975)
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(0.0, centre - reach), min(1.0, centre + reach)


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a run's time: seconds from its begin."""

    phase: str
    step: int
    start: float
    seconds: float


def gantt(run: Run) -> list[Bar]:
    """What the run did when, in seconds of its own time.

    Durations are measured; the order within a step is that of the step's verbs, also where sampling and scoring took
    turns, and what is in no phase stands behind them as `other`. A wait for a checkpoint stands before the step that
    tells of it. Time lost to kills is in no file.
    """
    bars, now = [], 0.0
    for record in run.records:
        for phase, length in _stretches(record):
            if length > 0:
                bars.append(Bar(phase, record[STEP], now, length))
            now += length
    return bars


def shares(bars: Sequence[Bar], phases: Sequence[str]) -> list[Series]:
    """The percent of each phase in the time of each step."""
    lengths = {(bar.phase, bar.step): bar.seconds for bar in bars}
    steps = tuple(sorted({bar.step for bar in bars}))
    totals = {step: sum(lengths.get((phase, step), 0.0) for phase in phases) for step in steps}
    return [
        Series(phase, steps, tuple(100 * lengths.get((phase, step), 0.0) / totals[step] for step in steps))
        for phase in phases
    ]


def _stretches(record: Record) -> list[tuple[str, float]]:
    """(phase, seconds) of one line of metrics, in order."""
    phases = [(words, _seconds(record, name)) for name, words in PHASES]
    if "timing_s/wait_for_samples" in record:
        # Sampling ran beside the update: what it took of the step is how long the trainer waited.
        phases = [("sample", _seconds(record, "wait_for_samples")), *phases[2:]]
    other = _seconds(record, "step") - sum(length for _, length in phases)
    ends = [("other", max(0.0, other)), ("evaluate", _seconds(record, "testing"))]
    return [("save", _seconds(record, "save_checkpoint")), *phases, *ends]


def _seconds(record: Record, name: str) -> float:
    return max(0.0, number(record.get(f"timing_s/{name}")) or 0.0)
