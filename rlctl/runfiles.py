"""The files of a run: `runs/NAME/` with config.resolved.json, machine.json, metrics.jsonl, samples.jsonl, checkpoints/.

JSON here is strict: a number that is not finite becomes null, and its name is listed under `not_finite`.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlctl import __version__
from rlctl.errors import ConfigError
from rlctl.types import BackendInfo, Rollout


class RunFiles:
    """One run's folder. Raises ConfigError when it holds a run already or cannot be written."""

    def __init__(self, folder: Path, *, config: Mapping[str, Any]) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        # A run that ended before its first step left nothing to lose.
        if (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size:
            raise ConfigError(
                f"{folder} already holds a run, and this version cannot resume one.",
                hint="choose another --name, or move the folder away.",
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"rlctl_version": __version__, **config}, indent=2, allow_nan=False)
            (folder / "config.resolved.json").write_text(text + "\n", encoding="utf-8")
            (folder / "metrics.jsonl").touch()
            (folder / "samples.jsonl").touch()
        except OSError as error:
            raise ConfigError(
                f"the run's folder {folder} cannot be written: {error.strerror or error}.", hint="set run.dir."
            ) from error

    def write_machine(self, info: BackendInfo) -> None:
        """What the run runs on, as `start` found it: the peak and its source are half of every MFU."""
        (self.folder / "machine.json").write_text(json.dumps(asdict(info), indent=2) + "\n", encoding="utf-8")

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        self._append("metrics.jsonl", strict(metrics))

    def write_samples(self, step: int, rollouts: Sequence[Rollout]) -> None:
        for rollout in rollouts:
            self._append("samples.jsonl", strict({"step": step, **sample_record(rollout)}))

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        # One write of a whole line: a kill leaves whole lines behind.
        with (self.folder / name).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record, allow_nan=False) + "\n")


def sample_record(rollout: Rollout) -> dict[str, Any]:
    return {
        "problem": rollout.problem.id,
        "question": rollout.problem.question,
        "answer": rollout.problem.answer,
        "completion": rollout.text,
        "reward": rollout.reward,
        "scores": dict(rollout.scores),
        "note": rollout.note,
        "finish_reason": rollout.completion.finish_reason,
        "tokens": len(rollout.completion.token_ids),
    }


def strict(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with null for every number that is not finite, named under `not_finite`."""
    bad = sorted(key for key, value in record.items() if isinstance(value, float) and not math.isfinite(value))
    clean = {key: None if key in bad else value for key, value in record.items()}
    return {**clean, "not_finite": bad} if bad else clean


def run_folder(parent: str, name: str | None, *, preset: str | None) -> Path:
    """Where a run of that name goes, as an absolute path; without a name, a folder that no other run has."""
    folder = Path(os.path.expanduser(parent)).absolute()  # noqa: PTH111  # an unknown ~user stays as it is
    return folder / name if name else free_folder(folder, new_name(preset))


def new_name(preset: str | None) -> str:
    """A name no other run has, from the preset and the time."""
    return f"{preset or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"


def free_folder(parent: Path, name: str) -> Path:
    """`parent/name`, or with a number behind where two runs start in one second."""
    folder, number = parent / name, 2
    while folder.exists():
        folder, number = parent / f"{name}-{number}", number + 1
    return folder
