"""The folder of a run's checkpoints: which there are, which is the latest good one, and which ones stay.

What a checkpoint is, its manifest says; the names of folders are for people. Names that begin with a dot are of
checkpoints being written or removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl import durable
from rlctl.checkpoints import manifest
from rlctl.checkpoints.manifest import Manifest
from rlctl.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Held:
    """A checkpoint by its folder and manifest."""

    folder: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.step


@dataclass(frozen=True, slots=True)
class Keeping:
    """Which checkpoints stay: the last ones, those of every so many steps, and the one best by a metric.

    `last` None keeps all. `best` is the metric's name, with `-` before it where less is better.
    """

    last: int | None
    every: int | None
    best: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """The latest good checkpoint, and what is wrong with those that were passed over."""

    held: Held | None
    complaints: Sequence[str]


def folder_of(shelf: Path, step: int) -> Path:
    return shelf / f"step_{step:06d}"


def list_held(shelf: Path) -> tuple[list[Held], list[str]]:
    """Every checkpoint whose manifest can be read, latest first; and what is wrong with the others."""
    held, complaints = [], []
    for folder in sorted(shelf.iterdir()) if shelf.is_dir() else []:
        if folder.name.startswith(".") or not folder.is_dir():
            continue
        try:
            held.append(Held(folder, manifest.read(folder)))
        except CheckpointError as error:
            complaints.append(error.message)
    # Two folders with one step are copies; the name only makes the choice a fixed one.
    return sorted(held, key=lambda each: (each.step, each.folder.name), reverse=True), complaints


def latest(shelf: Path) -> Found:
    """The checkpoint with the highest step whose every file is what its manifest says; all of it is read."""
    held, complaints = list_held(shelf)
    for each in held:
        try:
            manifest.verify(each.folder)
        except CheckpointError as error:
            complaints.append(error.message)
            continue
        return Found(each, complaints)
    return Found(None, complaints)


def tidy(shelf: Path) -> list[str]:
    """Remove what a killed run was writing or removing; the names of what was there."""
    leftovers = sorted(path for path in shelf.glob(".step_*") if path.is_dir()) if shelf.is_dir() else []
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in leftovers]


def put(aside: Path, shelf: Path, *, step: int) -> Path:
    """Give a sealed checkpoint its name; one of that name that is there already is a damaged one, and goes."""
    final = folder_of(shelf, step)
    if final.exists():
        durable.remove_tree(final)
    aside.rename(final)
    durable.flush_folder(shelf)
    return final


def best_of(held: Sequence[Held], metric: str) -> Held | None:
    """The one whose metric is best, the earliest of equal ones; None where none has it."""
    name, sign = metric.removeprefix("-"), -1 if metric.startswith("-") else 1
    with_it = [each for each in held if each.manifest.metrics.get(name) is not None]
    return max(with_it, key=lambda each: (sign * each.manifest.metrics[name], -each.step), default=None)


def prune(shelf: Path, keeping: Keeping, *, good: int) -> list[Path]:
    """Remove what need not stay, and say what was. `good` is the step of a checkpoint verified just now: it stays."""
    if keeping.last is None:
        return []
    held, _ = list_held(shelf)
    stay = {good, *(each.step for each in held[: keeping.last])}
    if keeping.every:
        stay |= {each.step for each in held if each.step % keeping.every == 0}
    if keeping.best and (best := best_of(held, keeping.best)) is not None:
        stay.add(best.step)
    gone = [each.folder for each in held if each.step not in stay]
    for folder in gone:
        durable.remove_tree(folder)
    return gone
