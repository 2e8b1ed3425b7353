"""Runs of the fake backend on forty sums, for the tests of whole runs: prepare, run, and read what was written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlctl import config, loop, resuming
from rlctl.outcome import Outcome, Reporter
from rlctl.prepare import Prepared, prepare
from tests.fakes import FakeBackend

ENVIRON = {"RLCTL_PLUGINS": "x"}


class Recorder(Reporter):
    """A reporter that keeps what it was told; `after_step` may do something in the middle of a run."""

    def __init__(self, after_step: Callable[[int], None] = lambda step: None) -> None:
        self.notes: list[str] = []
        self.after_step = after_step

    def step(self, metrics: dict[str, Any]) -> None:
        self.after_step(metrics["training/global_step"])

    def note(self, text: str) -> None:
        self.notes.append(text)


def write_problems(folder: Path, number: int = 40) -> Path:
    path = folder / "problems.jsonl"
    rows = [{"question": f"What is {i} and {i}?", "answer": f"#### {i % 10}"} for i in range(number)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def prepared(model: Path, data: Path, *assignments: str) -> Prepared:
    base = [
        "backend=fake", f"model.path={model}", f"data.path={data}", "data.max_prompt_length=64",
        "reward.functions=tests.scores:digit_reward", "rollout.n=4", "rollout.max_response_length=6",
        "trainer.train_batch_size=4", "trainer.steps=6", "trainer.save_freq=1", "trainer.eval_freq=3",
        "trainer.lr=1.0", "data.eval_size=4", "reward.num_workers=1",
    ]  # fmt: skip
    return prepare(config.load(assignments=[*base, *assignments], environ=ENVIRON).settings)


def run(
    ready: Prepared, folder: Path, recorder: Recorder | None = None, *, backend: FakeBackend | None = None
) -> tuple[Outcome, FakeBackend]:
    """As `rlctl train` does: on from a checkpoint where the folder has one."""
    used = backend or loop.backend_for(ready)
    assert isinstance(used, FakeBackend)
    plan = resuming.plan(folder, ready)
    recorder = recorder or Recorder()
    recorder.notes += plan.lines
    files = plan.open(folder, config={}, note=recorder.note)
    work = loop.run(ready, backend=used, reporter=recorder, files=files, resume=plan.resume)
    return asyncio.run(work), used


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def without_times(path: Path) -> list[dict[str, Any]]:
    records = lines(path)
    return [{k: v for k, v in record.items() if not k.startswith(("timing_s/", "perf/"))} for record in records]
