"""Saving while a run goes on: in the background, one at a time, by policy when the disk is full, and what stays."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlctl import loop
from rlctl.checkpoints import shelf
from rlctl.errors import CheckpointError
from tests.fakes import FakeBackend, FakeSnapshot
from tests.runs import Recorder, prepared, run, saved

pytestmark = pytest.mark.usefixtures("fake_backend")


class Disk:
    """Where snapshots go: full at some of the saves; the first `patient` of them end when the run has computed on."""

    def __init__(self, *, full_at: tuple[int, ...] = (), seconds: float = 0.0, patient: int = 0) -> None:
        self.full_at, self.seconds, self.patient = full_at, seconds, patient
        self.computed, self.met = threading.Event(), 0
        self.writes = self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()


class OnDisk(FakeBackend):
    """Writes its snapshots to a `Disk`, which it tells when it computes."""

    def __init__(self, ready: Any, disk: Disk) -> None:
        made = loop.backend_for(ready)
        super().__init__(made.settings, made.job)
        self.disk = disk

    async def generate(self, prompts: Any, **how: Any) -> Any:
        self.disk.computed.set()
        return await super().generate(prompts, **how)

    async def snapshot(self) -> Any:
        self.disk.computed.clear()
        return _ToDisk(self.theta.copy(), self.version, self.disk)


class _ToDisk(FakeSnapshot):
    def __init__(self, theta: Any, version: int, disk: Disk) -> None:
        super().__init__(theta, version)
        object.__setattr__(self, "disk", disk)

    def write(self, path: Path) -> Mapping[str, str]:
        disk: Disk = self.disk  # type: ignore[attr-defined]
        with disk.lock:
            disk.writes += 1
            disk.at_once += 1
            disk.most_at_once = max(disk.most_at_once, disk.at_once)
            number = disk.writes
        try:
            time.sleep(disk.seconds)
            disk.met += number <= disk.patient and disk.computed.wait(timeout=60)
            (path / "begun").write_bytes(b"x" * 1000)
            if number in disk.full_at:
                raise OSError(28, "No space left on device")
            return super().write(path)
        finally:
            with disk.lock:
                disk.at_once -= 1


def test_a_checkpoint_is_written_while_the_next_step_runs_and_one_at_a_time(
    tiny_llama: Path, data: Path, tmp_path: Path
) -> None:
    ready = prepared(tiny_llama, data, "trainer.eval_freq=0")
    # The last of the six has nothing to wait for.
    backend = OnDisk(ready, Disk(patient=5))
    run(ready, tmp_path / "run", backend=backend)
    assert backend.disk.most_at_once == 1
    assert backend.disk.met == 5
    assert saved(tmp_path / "run") == [f"step_{step:06d}" for step in range(1, 7)]


def test_a_full_disk_stops_the_run_and_says_how_much_it_needs(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    # Field fault 127.
    ready = prepared(tiny_llama, data)
    recorder = Recorder()
    with pytest.raises(CheckpointError, match="No space left on device") as caught:
        run(ready, tmp_path / "run", recorder, backend=OnDisk(ready, Disk(full_at=(3,))))
    assert "checkpoints/step_000003 cannot be written" in caught.value.message
    assert "bytes as the last one" in caught.value.message
    assert "are free" in caught.value.message
    assert caught.value.exit_code == 4
    assert saved(tmp_path / "run") == ["step_000001", "step_000002"]
    found = shelf.latest(tmp_path / "run/checkpoints")
    assert found.held is not None
    assert (found.held.step, list(found.complaints)) == (2, [])


def test_a_run_goes_on_without_a_checkpoint_where_that_is_asked_for(
    tiny_llama: Path, data: Path, tmp_path: Path
) -> None:
    ready = prepared(tiny_llama, data, "trainer.on_save_error=continue")
    recorder = Recorder()
    outcome, _ = run(ready, tmp_path / "run", recorder, backend=OnDisk(ready, Disk(full_at=(2, 3))))
    assert outcome.exit_code == 0
    assert saved(tmp_path / "run") == [f"step_{step:06d}" for step in (1, 4, 5, 6)]
    assert sum("The run goes on (trainer.on_save_error)" in note for note in recorder.notes) == 2


def test_the_last_checkpoint_must_succeed_all_the_same(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data, "trainer.on_save_error=continue")
    with pytest.raises(CheckpointError, match="step_000006 cannot be written"):
        run(ready, tmp_path / "run", backend=OnDisk(ready, Disk(full_at=(6,))))
    assert saved(tmp_path / "run") == [f"step_{step:06d}" for step in range(1, 6)]


def test_weights_that_are_not_finite_stop_a_run_that_would_go_on(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data, "trainer.on_save_error=continue")
    backend = loop.backend_for(ready)
    assert isinstance(backend, FakeBackend)
    recorder = Recorder(lambda step: backend.theta.fill(float("nan")) if step == 3 else None)
    with pytest.raises(CheckpointError, match="not finite"):
        run(ready, tmp_path / "run", recorder, backend=backend)
    assert saved(tmp_path / "run") == ["step_000001", "step_000002"]


def test_only_the_last_and_the_best_stay(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data, "trainer.keep_last=2", "trainer.keep_best=score/mean")
    outcome, _ = run(ready, tmp_path / "run")
    scores = [m["score/mean"] for m in outcome.metrics]
    best = 1 + scores.index(max(scores))
    assert saved(tmp_path / "run") == sorted({f"step_{step:06d}" for step in (best, 5, 6)})
    state = json.loads((tmp_path / "run/checkpoints/step_000006/run_state.json").read_text())
    assert state["best"] == {"metric": "score/mean", "value": max(scores), "step": best}


def test_a_best_metric_that_is_not_there_is_told(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    ready = prepared(tiny_llama, data, "trainer.keep_last=1", "trainer.keep_best=score/meen")
    run(ready, tmp_path / "run", recorder)
    assert any("no metric score/meen (trainer.keep_best). Did you mean score/mean?" in n for n in recorder.notes)
