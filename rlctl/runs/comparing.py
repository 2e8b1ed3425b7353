"""`rlctl runs compare`: what differs in the settings of runs, and how their metrics differ over the steps all have.

Steps are paired by their number. Neighbouring steps resemble each other, so differences are averaged over blocks of
steps and the interval is a bootstrap over blocks (batch means; the number of steps to the power 1/3 in each, the order
that is best for the variance of a mean: Hall, Horowitz & Jing 1995, https://doi.org/10.1093/biomet/82.3.561). It says
whether these runs differ; what another seed would have given, one run of each cannot say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rlctl.runfiles import STEP
from rlctl.runs.lines import number
from rlctl.runs.reading import Run

FEWEST_BLOCKS = 4
"""Blocks from which on an interval is given."""

METRICS = (
    "score/mean", "reward/mean", "reward/frac_zero_signal", "response_length/mean", "response_length/clip_ratio",
    "actor/entropy", "actor/grad_norm", "actor/pg_clipfrac", "actor/ppo_kl", "reward/kl/mean",
    "training/rollout_probs_diff_mean",
    "timing_s/step", "timing_s/gen", "timing_s/update_actor", "perf/tokens_per_s", "perf/mfu/actor", "perf/mfu/step",
    "perf/max_memory_allocated_gb",
)  # fmt: skip
"""What is compared unless other metrics are named."""

IDLE = ("run.name", "run.dir", "run.resume")
"""Settings that say where a run is, not what it does."""

ALGORITHM = "effective algorithm"
"""Beside the settings that differ, since several of them make it."""

MEASURED = ("timing_s/", "perf/")
"""Metrics that differ between two runs of the same numbers."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting with different values: [runs] values with their origins; "absent" where a run does not have it.

    So is the effective algorithm, which several settings make, and which has no origin.
    """

    name: str
    values: tuple[str, ...]
    origins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A metric of a run against the first one's, over their common steps: means, difference, 95 % interval."""

    metric: str
    run: str
    first: float
    other: float
    low: float | None
    high: float | None
    num_steps: int
    block: int
    """Steps that were averaged before resampling."""
    constant: bool = False
    """The difference is the same in every step, so that there is nothing to resample."""

    @property
    def difference(self) -> float:
        return self.other - self.first

    @property
    def verdict(self) -> str:
        """What can be said: equal, lower, higher, or not told apart."""
        if self.constant:
            return "equal" if self.difference == 0 else "higher" if self.difference > 0 else "lower"
        if self.low is None or self.high is None:
            return "too few steps"
        return "higher" if self.low > 0 else "lower" if self.high < 0 else "not told apart"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs side by side, the first one the measure. `notes` say what keeps them from being comparable."""

    runs: tuple[Run, ...]
    settings: tuple[Setting, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]


def compare(runs: Sequence[Run], *, metrics: Sequence[str] | None = None, seed: int = 0) -> Comparison:
    names = METRICS if metrics is None else metrics
    pairs = ((name, other) for other in runs[1:] for name in names)
    found = (difference(name, runs[0], other, seed=seed) for name, other in pairs)
    return Comparison(
        tuple(runs), tuple(differing(runs)), tuple(one for one in found if one is not None), tuple(_notes(runs))
    )


def differing(runs: Sequence[Run]) -> Iterator[Setting]:
    """None where the settings of a run are not known, as every one would differ."""
    if not all(run.settings for run in runs):
        return
    yield from _algorithms(runs)
    for name in sorted({name for run in runs for name in run.settings}):
        values = tuple(repr(run.settings[name]) if name in run.settings else "absent" for run in runs)
        # A table that is empty in one run and filled in another is told by its settings.
        above = any(other.startswith(name + ".") for run in runs for other in run.settings)
        if len(set(values)) > 1 and name not in IDLE and not above:
            yield Setting(name, values, tuple(str(run.origins.get(name, "unknown")) for run in runs))


def _algorithms(runs: Sequence[Run]) -> Iterator[Setting]:
    """What of the runs' effective algorithms is not in all of them."""
    parts = [str(run.config.get("algorithm", "unknown")).split(", ") for run in runs]
    apart = tuple(", ".join(p for p in own if not all(p in other for other in parts)) for own in parts)
    if any(apart):
        yield Setting(ALGORITHM, apart, ("",) * len(runs))


def difference(metric: str, first: Run, other: Run, *, seed: int) -> Difference | None:
    """None where the runs have no step in common that has the metric in both."""
    from rlctl import statistics

    mine, theirs = _by_step(first, metric), _by_step(other, metric)
    common = sorted(mine.keys() & theirs.keys())
    if not common:
        return None
    block = round(len(common) ** (1 / 3))
    gaps = [theirs[step] - mine[step] for step in common]
    blocks = _block_means(gaps, block)
    constant = len(set(gaps)) == 1
    told = len(blocks) >= FEWEST_BLOCKS and len(set(blocks)) > 1
    interval = statistics.interval(blocks, seed=seed) if told else None
    return Difference(
        metric, other.name,
        sum(mine[step] for step in common) / len(common), sum(theirs[step] for step in common) / len(common),
        interval.low if interval else None, interval.high if interval else None, len(common), block,
        (constant and len(common) > 1) or gaps == [0.0],
    )  # fmt: skip


def _block_means(values: Sequence[float], size: int) -> list[float]:
    """Means over blocks of at least that many neighbours: as many whole blocks as there are, cut evenly."""
    count = max(1, len(values) // size)
    ends = [len(values) * part // count for part in range(count + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(ends)]


def _by_step(run: Run, metric: str) -> dict[int, float]:
    return {record[STEP]: value for record in run.records if (value := number(record.get(metric))) is not None}


def _notes(runs: Sequence[Run]) -> Iterator[str]:
    """What a reader must know before believing a difference."""
    first = runs[0]
    for run in runs[1:]:
        pair = f"{first.name} and {run.name}"
        if not (first.settings and run.settings):
            unknown = " and ".join(one.name for one in (first, run) if not one.settings)
            yield f"the settings of {unknown} are not known: nobody can say whether {pair} are comparable"
        elif any(_setting_differs(first, run, table) for table in ("data.", "reward.")):
            yield f"{pair} have other data or rewards: their scores do not measure the same thing"
        elif first.settings.get("seed") != run.settings.get("seed"):
            yield f"{pair} have different seeds: their steps see other problems, so pairing them gains nothing"
        if first.settings and run.settings and _batch(first) != _batch(run):
            yield f"{pair} sample different numbers of completions a step: a step is not the same work in both"
        if _machine(first) != _machine(run):
            yield f"{pair} ran on different machines or precisions: times and MFU compare those too"
        if first.machine and run.machine and first.machine.get("num_parameters") != run.machine.get("num_parameters"):
            yield f"{pair} train models of different size"
        if first.done != run.done:
            yield f"{first.name} has {first.done:,} steps and {run.name} {run.done:,}: only steps that both have count"
        if first.steps and run.steps and same_numbers(first, run):
            yield f"{pair} have the same numbers in every common step, but for what was measured in seconds and bytes"
    for run in runs:
        if run.state.kind not in ("finished", "running"):
            yield f"{run.name} is {run.state.kind} after step {run.done:,}"
        yield from run.complaints


def _setting_differs(first: Run, other: Run, table: str) -> bool:
    names = {name for run in (first, other) for name in run.settings if name.startswith(table)}
    return any(first.settings.get(name) != other.settings.get(name) for name in names)


def _batch(run: Run) -> tuple[object, object]:
    return run.settings.get("trainer.train_batch_size"), run.settings.get("rollout.n")


def _machine(run: Run) -> list[object]:
    """The peak measured on a cpu differs a little each time and says nothing of the machine."""
    return [run.machine.get(key) for key in ("device", "num_devices", "dtype")]


def same_numbers(first: Run, other: Run) -> bool:
    """Whether all that training computed is equal, over the steps that both have; False where there is none."""
    mine, theirs = ({record[STEP]: record for record in run.steps} for run in (first, other))
    common = mine.keys() & theirs.keys()
    return bool(common) and all(_computed(mine[step]) == _computed(theirs[step]) for step in common)


def _computed(record: object) -> dict[str, object]:
    assert isinstance(record, dict)
    return {name: value for name, value in record.items() if not name.startswith((*MEASURED, "val-"))}
