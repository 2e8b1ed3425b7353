"""Signals and limits: a step is finished within its grace or given up, the run is saved, and the exit code says why."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlctl import loop
from rlctl.settings import Settings
from rlctl.settings.trainer import TrainerSettings
from rlctl.stopping import GivenUp, Stopping
from tests.fakes import FakeBackend
from tests.runs import Recorder, prepared, run, saved, without_times

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.usefixtures("fake_backend")


class Slow(FakeBackend):
    """Takes its time in the generate of one step; `signals` are sent to this process when it begins."""

    def __init__(self, ready: Any, *, at: int, seconds: float, signals: tuple[int, ...] = ()) -> None:
        made = loop.backend_for(ready)
        super().__init__(made.settings, made.job)
        self.at, self.seconds, self.signals = at, seconds, signals
        self.abandoned = 0

    async def generate(self, prompts: Any, **how: Any) -> Any:
        if self.num_generates + 1 == self.at:
            self.at = 0
            for number in self.signals:
                os.kill(os.getpid(), number)
            await asyncio.sleep(self.seconds)
        return await super().generate(prompts, **how)

    def abandon(self) -> bool:
        self.abandoned += 1
        return True


def no_evaluation(model: Path, data: Path, *more: str) -> Any:
    return prepared(model, data, "trainer.eval_freq=0", "trainer.save_freq=0", *more)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_step_past_its_grace_is_given_up_and_the_one_before_is_saved(
    tiny_llama: Path, data: Path, tmp_path: Path, number: int, code: int
) -> None:
    ready = no_evaluation(tiny_llama, data, "run.stop_grace_s=0.3")
    slow = Slow(ready, at=4, seconds=60, signals=(number,))
    # Under nohup SIGHUP would be ignored, and stay so.
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    outcome, _ = run(ready, tmp_path / "run", backend=slow)
    assert outcome.exit_code == code
    assert slow.abandoned
    assert saved(tmp_path / "run") == ["step_000003"]
    run(ready, tmp_path / "run")
    run(ready, tmp_path / "straight")
    assert without_times(tmp_path / "run/metrics.jsonl") == without_times(tmp_path / "straight/metrics.jsonl")


def test_a_step_within_its_grace_is_finished(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = no_evaluation(tiny_llama, data, "run.stop_grace_s=30")
    slow = Slow(ready, at=4, seconds=0.3, signals=(signal.SIGTERM,))
    outcome, _ = run(ready, tmp_path / "run", backend=slow)
    assert outcome.exit_code == 143
    assert not slow.abandoned
    assert saved(tmp_path / "run") == ["step_000004"]


def test_sigusr1_saves_and_goes_on(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = no_evaluation(tiny_llama, data, "run.stop_grace_s=30")
    slow = Slow(ready, at=3, seconds=0.1, signals=(signal.SIGUSR1,))
    outcome, _ = run(ready, tmp_path / "run", backend=slow)
    assert outcome.exit_code == 0
    assert saved(tmp_path / "run") == ["step_000003", "step_000006"]


def test_sigusr1_in_a_long_step_saves_the_one_before_and_computes_it_again(
    tiny_llama: Path, data: Path, tmp_path: Path
) -> None:
    ready = no_evaluation(tiny_llama, data, "run.stop_grace_s=0.2")
    slow = Slow(ready, at=3, seconds=60, signals=(signal.SIGUSR1,))
    outcome, _ = run(ready, tmp_path / "run", backend=slow)
    assert outcome.exit_code == 0
    assert saved(tmp_path / "run") == ["step_000002", "step_000006"]
    run(ready, tmp_path / "straight")
    assert without_times(tmp_path / "run/metrics.jsonl") == without_times(tmp_path / "straight/metrics.jsonl")


def test_an_evaluation_that_was_cut_off_is_made_on_resuming(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    # Six generates: the evaluation before step 1, steps 1 to 3, and the evaluation after step 3.
    ready = prepared(tiny_llama, data, "run.stop_grace_s=0.2", "trainer.save_freq=0")
    slow = Slow(ready, at=5, seconds=60, signals=(signal.SIGTERM,))
    outcome, _ = run(ready, tmp_path / "run", backend=slow)
    assert outcome.exit_code == 143
    assert [m["training/global_step"] for m in without_times(tmp_path / "run/metrics.jsonl")] == [0, 1, 2]
    assert saved(tmp_path / "run") == ["step_000003"]
    recorder = Recorder()
    resumed, _ = run(ready, tmp_path / "run", recorder)
    run(ready, tmp_path / "straight")
    assert without_times(tmp_path / "run/metrics.jsonl") == without_times(tmp_path / "straight/metrics.jsonl")
    # Its step was shown in the first life, and counts in the second.
    assert [step["training/global_step"] for step in resumed.metrics] == [1, 2, 3, 4, 5, 6]
    assert "val-core/problems/acc/mean@1" in resumed.metrics[2]


def test_a_limit_on_the_wall_clock_is_kept(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    from rlctl.stopping import _process_age_s

    limit = _process_age_s() + 8
    ready = no_evaluation(tiny_llama, data, f"trainer.save_before={limit}", "trainer.steps=1000")
    recorder = Recorder(lambda step: time.sleep(0.05))
    outcome, _ = run(ready, tmp_path / "run", recorder)
    assert _process_age_s() < limit
    assert outcome.exit_code == 75
    done = len(outcome.metrics)
    # How many depends on the machine; the limit, not their number, ended them.
    assert 1 <= done < 1000
    assert saved(tmp_path / "run") == [f"step_{done:06d}"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("0:01:30", 90.0), ("12:00:00", 43200.0), ("1-02:00:00", 93600.0)]
)
def test_a_limit_is_written_as_slurm_writes_it(text: str, seconds: float) -> None:
    assert TrainerSettings.model_validate({"save_before": text}).save_before == seconds


@pytest.mark.parametrize("text", ["soon", "1:2", "-5", "0", "12:00"])
def test_other_limits_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="save_before"):
        TrainerSettings.model_validate({"save_before": text})


def test_work_past_its_deadline_is_cancelled_once() -> None:
    cancelled = []

    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def guarded() -> None:
        stopping = Stopping(grace_s=0.1)
        asyncio.get_running_loop().call_later(0.1, stopping.ask, signal.SIGTERM)
        await stopping.guard(endless())

    with pytest.raises(GivenUp):
        asyncio.run(guarded())
    assert cancelled == [True]


def test_what_is_guarded_keeps_its_result_and_its_error() -> None:
    async def gives(value: int) -> int:
        if value < 0:
            raise ValueError("negative")
        return value

    stopping = Stopping(grace_s=Settings().run.stop_grace_s)
    assert asyncio.run(stopping.guard(gives(3))) == 3
    with pytest.raises(ValueError, match="negative"):
        asyncio.run(stopping.guard(gives(-1)))


CHILD = """
import os, sys, time
from pathlib import Path
from tests import runs
from tests.test_stopping import Slow
model, folder = Path(sys.argv[1]), Path(sys.argv[2])
from rlctl import runlock
data = runs.write_problems(folder)
ready = runs.prepared(model, data, "trainer.eval_freq=0", "trainer.save_freq=1")
slow = Slow(ready, at=3, seconds=600)
slow.seconds = 600
with runlock.held(folder / "run", note=lambda text: print(text, flush=True)):
    runs.run(ready, folder / "run", runs.Recorder(lambda step: print("step", step, flush=True)), backend=slow)
"""


@pytest.mark.slow
def test_a_second_signal_leaves_at_once_and_the_lock_goes_with_the_process(
    tiny_llama: Path, data: Path, tmp_path: Path
) -> None:
    from rlctl import runlock
    from rlctl.errors import ConfigError

    environment = os.environ | {"PYTHONPATH": str(ROOT), "RLCTL_PLUGINS": "tests.fake_plugin"}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tiny_llama), str(tmp_path)],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("step 2"):
            break
    time.sleep(0.2)
    with (
        pytest.raises(ConfigError, match=f"in use by process {child.pid} on"),
        runlock.held(tmp_path / "run", note=print),
    ):
        raise AssertionError("two runs in one folder")
    child.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=60) == 130
    notes: list[str] = []
    with runlock.held(tmp_path / "run", note=notes.append):
        assert len(notes) == 1
        assert f"the lock of process {child.pid}" in notes[0]
        assert "stale" in notes[0]
