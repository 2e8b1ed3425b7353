"""What one smoke run leaves to be compared: where and of what it ran, and of each step what it did and cost."""

from __future__ import annotations

import fnmatch
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlctl.baselines.clock import sees_waiting
from rlctl.baselines.meter import JUDGED, StepClock
from rlctl.checkpoints.state import versions
from rlctl.config import dump
from rlctl.outcome import Outcome
from rlctl.prepare import Prepared
from rlctl.report import Metrics, mean
from rlctl.resuming import SAFE, fingerprints
from rlctl.settings_tree import paths
from rlctl.step_report import StepReport

COUNTS = {
    "FLOPs of the update": "flops_update",
    "FLOPs of sampling": "flops_sampling",
    "prompt tokens": "prompt_tokens",
    "sampled tokens": "sampled_tokens",
}
"""What a step's work comes to: words -> name in the file."""
RESULTS = {"score": "score", "loss": "loss", "grad norm": "grad_norm"}


@dataclass(frozen=True, slots=True)
class Step:
    """One step. Counts are of the whole step; `seconds` are own ones (`clock.py`), `wall` those with what was waited
    for a processor; `reference` are own ones of a repetition of the reference work around each phase, empty where the
    backend has none."""

    step: int
    flops_update: float | None
    flops_sampling: float | None
    prompt_tokens: int
    sampled_tokens: int
    score: float | None
    loss: float | None
    grad_norm: float | None
    mfu: float | None
    tflops: float | None
    tokens_per_s: float | None
    seconds: dict[str, float]
    wall: dict[str, float]
    reference: dict[str, tuple[float, ...]]
    scores: dict[str, float]
    """By problem, the mean score of its completions."""


@dataclass(frozen=True, slots=True)
class Record:
    """One run. `key` is what it ran on, `recipe` every setting that decides what it does, by dotted name."""

    key: dict[str, Any]
    recipe: dict[str, Any]
    steps: tuple[Step, ...] = field(default=())

    def tree(self) -> dict[str, Any]:
        return asdict(self)


def record_of(prepared: Prepared, outcome: Outcome, clocks: Sequence[StepClock]) -> Record:
    """`clocks` are those of the steps that were begun, in order; none where nobody timed the run."""
    task = prepared.rewards.rewards[0].name
    known = clocks or [StepClock()] * len(outcome.reports)
    steps = [
        _step(report, metrics, clock, task=task)
        for report, metrics, clock in zip(outcome.reports, outcome.metrics, known, strict=False)
    ]
    return Record(_key(prepared, outcome), _recipe(prepared), tuple(steps))


def _step(report: StepReport, metrics: Metrics, clock: StepClock, *, task: str) -> Step:
    return Step(
        step=report.step,
        flops_update=_number(metrics["perf/flops/actor"]),
        flops_sampling=_number(metrics["perf/flops/gen"]),
        prompt_tokens=sum(len(rollout.prompt.token_ids) for rollout in report.rollouts),
        sampled_tokens=sum(len(rollout.completion.token_ids) for rollout in report.rollouts),
        score=metrics["score/mean"],
        loss=_number(metrics["actor/loss"]),
        grad_norm=_number(metrics["actor/grad_norm"]),
        mfu=metrics["perf/mfu/actor"],
        tflops=metrics["perf/tflops_per_device"],
        tokens_per_s=metrics["perf/tokens_per_s"],
        seconds=_judged(clock.phases),
        wall=_judged(clock.wall),
        reference=clock.reference,
        scores=_scores(report, task),
    )


def _judged(phases: Mapping[str, float]) -> dict[str, float]:
    named: dict[str, float] = {name: phases.get(phase, 0.0) for phase, name in JUDGED.items()}
    return named | {"step": sum(phases.values())}


def _scores(report: StepReport, task: str) -> dict[str, float]:
    by_problem = {group[0].problem.id: [r.scores[task] for r in group if task in r.scores] for group in report.groups}
    return {name: float(value) for name, scores in by_problem.items() if (value := mean(scores)) is not None}


def _number(value: float | None) -> float | None:
    """A number that a file can hold, or none."""
    return value if value is not None and value - value == 0 else None


def _key(prepared: Prepared, outcome: Outcome) -> dict[str, Any]:
    info = outcome.info
    return {
        "backend": prepared.settings.backend,
        "device": info.device,
        "devices": info.num_devices,
        "dtype": info.dtype,
        "model": prepared.model,
        "parameters": info.num_parameters,
        "processor": _processor(),
        "threads": _threads(),
        "peak": info.peak_source,
        "clock": "own seconds" if sees_waiting() else "wall seconds",
        "versions": versions(),
    }


def _processor() -> str:
    """The processor's name and how many of it this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()} x{cores}"


def _threads() -> int | None:
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch is not None else None


DECIDES_NOTHING = tuple(pattern for pattern in SAFE if pattern not in ("trainer.steps", "trainer.epochs"))


def _recipe(prepared: Prepared) -> dict[str, Any]:
    settings = prepared.settings
    tree = dump(settings)
    others = [name for name in tree["remote_backend"] if name != settings.backend]
    left_out = (*DECIDES_NOTHING, *(f"remote_backend.{name}.*" for name in others))
    if settings.backend != "local":
        left_out += ("local.*",)
    recipe = {".".join(keys): _at(tree, keys) for keys in paths(tree)}
    kept = {name: v for name, v in recipe.items() if not any(fnmatch.fnmatch(name, p) for p in left_out)}
    return kept | {f"problems of {name}": digest for name, digest in fingerprints(prepared).items()}


def _at(tree: Mapping[str, Any], keys: Sequence[str]) -> Any:
    value: Any = tree
    for key in keys:
        value = value[key]
    return value
