"""Lives of a tracked run: each writes some steps to the run's files, as the loop does, with its trackers beside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlctl.runfiles import STEP, RunFiles
from rlctl.settings.tracking import TrackingSettings
from rlctl.trackers.following import Following, following
from rlctl.trackers.loading import load

CONFIG: dict[str, Any] = {
    "preset": "gsm8k-grpo",
    "settings": {
        "trainer": {"lr": 1e-06, "steps": 6, "mini_batch_size": None, "save_in_background": True},
        "reward": {"functions": ["gsm8k", "a.b:c"]},
        "remote_backend": {"x": {"key": "**********", "address": "https://me:pw@host/path"}},
        "tracking": {"options": {"a.b:C": {"api_key": "s3cr3t", "max_tokens": 3}}},
    },
    "origins": {"trainer.lr": "RLCTL_TRAINER__LR", "trainer.steps": "default"},
}


def live(
    folder: Path,
    settings: TrackingSettings,
    steps: Sequence[int],
    *,
    after: int | None = None,
    score: float = 0.5,
    end: Callable[[Following], None] = lambda followed: followed.ended(0),
) -> tuple[list[str], list[int]]:
    """(notes, exit codes with which the process was to be left) of a life that goes on after a step."""
    notes: list[str] = []
    left: list[int] = []
    trackers = load(settings, run_dir=str(folder.parent))
    files = RunFiles(folder, config=CONFIG, after=after)
    with following(trackers, files, settings=settings, note=notes.append, leave=left.append) as followed:
        for step in steps:
            files.write_metrics(record(step, score))
        end(followed)
    return notes, left


def record(step: int, score: float) -> dict[str, Any]:
    return {
        STEP: step,
        "score/mean": score + step,
        "actor/entropy": None,
        "actor/grad_norm": float("nan"),
        "perf/mfu/actor/reason": "unknown device",
        "val-core/gsm8k/acc/mean@8": 0.25,
    }
