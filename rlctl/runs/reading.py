"""A run as its folder tells it, whatever state the folder is in: going, ended, killed, half written, damaged.

What cannot be read is told in `complaints`, and the rest is shown all the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rlctl.checkpoints import shelf
from rlctl.checkpoints.state import read_state
from rlctl.errors import CheckpointError
from rlctl.runfiles import CONFIG, ENDED, STEP
from rlctl.runs.lines import Record, number, read_lines, read_object
from rlctl.runs.state import State, state_of


@dataclass(frozen=True)
class Run:
    """One run. `records` are its lines of metrics by rising step, step 0 the evaluation before training."""

    folder: Path
    state: State
    config: Record
    machine: Record
    records: tuple[Record, ...]
    resumes: tuple[Record, ...]
    total_steps: int | None
    """None where the run left word of it nowhere."""
    complaints: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def steps(self) -> tuple[Record, ...]:
        """The lines of training steps."""
        return tuple(record for record in self.records if record[STEP] > 0)

    @property
    def done(self) -> int:
        """The last step that is done."""
        return int(self.steps[-1][STEP]) if self.steps else 0

    @cached_property
    def evaluations(self) -> tuple[Record, ...]:
        return tuple(record for record in self.records if any(key.startswith("val-") for key in record))

    @property
    def seconds(self) -> float:
        """How long steps, evaluations and waits for checkpoints took; without what was lost to kills."""
        names = ("timing_s/step", "timing_s/testing", "timing_s/save_checkpoint")
        return sum(number(record.get(name)) or 0.0 for record in self.records for name in names)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting by its dotted name."""
        return flat(self.config.get("settings"))

    @property
    def origins(self) -> Mapping[str, Any]:
        found = self.config.get("origins")
        return found if isinstance(found, dict) else {}

    @property
    def task(self) -> str | None:
        """The reward whose value is the score: the first."""
        functions = self.settings.get("reward.functions")
        if not isinstance(functions, list) or not functions:
            return None
        return str(functions[0])

    @cached_property
    def size_bytes(self) -> int:
        total = 0
        for path in self.folder.rglob("*"):
            with contextlib.suppress(OSError):  # a checkpoint may be on its way out
                if path.is_file() and not path.is_symlink():
                    total += path.stat().st_size
        return total


def read_run(folder: Path) -> Run:
    """The run in a folder; never raises for what the folder holds."""
    config, faults = read_object(folder / CONFIG)
    machine, machine_faults = read_object(folder / "machine.json")
    metrics = read_lines(folder / "metrics.jsonl")
    ended, ended_faults = read_object(folder / ENDED)
    resumes = read_lines(folder / "resumes.jsonl")
    records, order_faults = _by_step(metrics.records, folder / "metrics.jsonl")
    if not config and not faults:
        faults = (f"{folder / CONFIG} is missing, so the run's settings are not known",)
    total = _total_steps(config, folder)
    state = state_of(folder, ended=ended, done=records[-1][STEP] if records else 0, total=total)
    half: tuple[str, ...] = ()
    if metrics.unfinished and state.kind != "running":
        half = (f"{folder / 'metrics.jsonl'}: the last line was cut off and is left out",)
    complaints = (*faults, *machine_faults, *metrics.complaints, *order_faults, *half, *ended_faults)
    return Run(folder, state, config, machine, records, resumes.records, total, (*complaints, *resumes.complaints))


def _by_step(records: tuple[Record, ...], path: Path) -> tuple[tuple[Record, ...], tuple[str, ...]]:
    """The records by rising step, the later of two with one step; and what was wrong."""
    by_step: dict[int, Record] = {}
    stepless = repeated = 0
    for record in records:
        step = record.get(STEP)
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**53:
            stepless += 1
            continue
        repeated += step in by_step
        by_step[step] = record
    faults = []
    if stepless:
        faults.append(f"{path}: {stepless:,} lines name no step and are left out")
    if repeated:
        faults.append(f"{path}: {repeated:,} steps stand there twice; the later line counts")
    return tuple(by_step[step] for step in sorted(by_step)), tuple(faults)


def _total_steps(config: Record, folder: Path) -> int | None:
    """As the run wrote it down; in a folder of an earlier version, as its settings or its last checkpoint have it."""
    settings = flat(config.get("settings"))
    for found in (config.get("total_steps"), settings.get("trainer.steps")):
        if isinstance(found, int) and not isinstance(found, bool):
            return found
    with contextlib.suppress(CheckpointError, OSError):
        held, _ = shelf.list_held(folder / "checkpoints")
        return read_state(held[0].folder).total_steps if held else None
    return None


def flat(tree: object, above: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; an empty table stays a value."""
    if not isinstance(tree, dict):
        return {}
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{above}{key}"
        found |= flat(value, name + ".") if isinstance(value, dict) and value else {name: value}
    return found
