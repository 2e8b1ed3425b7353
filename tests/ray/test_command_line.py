"""Whole runs through the command line: what they print, how they end, and that they leave nothing."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import environment, start
from tests.ray.leftovers import MARK, processes_after, shared_memory

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_stack")]

SMALL = ("--set", "remote_backend.ray.kv_cache_gb=0.25", "--set", "remote_backend.ray.device=cpu")


class Run:
    """`rlctl ...` in a session of its own, as a terminal would start it."""

    def __init__(self, *arguments: str, folder: Path, forked: bool = True) -> None:
        self.mark = uuid.uuid4().hex
        self.before = shared_memory()
        environ = {**environment(), "RAY_ADDRESS": os.environ.get("RAY_ADDRESS", ""), MARK: self.mark}
        with (folder / "stderr").open("w") as stderr:
            self.process = start(*arguments, cwd=folder, environ=environ, stderr=stderr, forked=forked)

    def until(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in line:
                return
        pytest.fail(f"it ended with {self.process.wait()} and never said {text!r}")

    def signal(self, number: int) -> None:
        """To the whole group, as Ctrl-C does."""
        os.killpg(self.process.pid, number)

    def must_leave_nothing(self) -> None:
        # Ray's own agents need up to half a minute on a busy machine to see that their driver was killed.
        assert processes_after(self.mark, 60) == []
        assert shared_memory() <= self.before


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Run]:
    run = Run(
        "train", "--preset", "gsm8k-grpo", "--variant", "embedded", "--backend", "ray", "--name", "run", *SMALL,
        "--set", "trainer.train_batch_size=4", "--set", "trainer.eval_freq=0", "--set", "trainer.save_freq=1",
        folder=tmp_path, forked=False,
    )  # fmt: skip
    yield run
    run.process.kill()


def test_a_driver_that_is_killed_leaves_nothing(train: Run) -> None:
    train.until("step 1/40")
    time.sleep(0.5)  # into the next step
    train.process.kill()
    train.must_leave_nothing()


def test_train_learns_and_ctrl_c_saves_and_leaves_nothing(tmp_path: Path) -> None:
    """The smoke below goes to its end; this run is ended after what is to be learned."""
    run = Run(
        "train", "--preset", "gsm8k-grpo", "--variant", "embedded", "--backend", "ray", "--name", "run", *SMALL,
        "--set", "trainer.train_batch_size=16", "--set", "trainer.eval_freq=8",
        "--set", "trainer.lr_schedule=constant", "--set", "trainer.warmup_ratio=0.02", "--set", "data.eval_size=128",
        folder=tmp_path,
    )  # fmt: skip
    run.until("step 9/40")
    run.signal(signal.SIGINT)
    assert run.process.wait(600) == 130, (tmp_path / "stderr").read_text()
    saved = sorted(folder.name for folder in (tmp_path / "runs/run/checkpoints").iterdir())
    assert saved[-1] >= "step_000009"
    assert (tmp_path / "runs/run/checkpoints" / saved[-1] / "model.safetensors").is_file()
    lines = [json.loads(line) for line in (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()]
    accuracy = [
        line["val-core/word-problems/acc/mean@1"] for line in lines if "val-core/word-problems/acc/mean@1" in line
    ]
    # The local backend goes from 0.47 to about 0.75 in as many steps; 128 problems are good for 0.04.
    assert accuracy[-1] > accuracy[0] + 0.12
    run.must_leave_nothing()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense", "auto"])
def test_an_address_where_no_cluster_is(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without it, "auto" finds the cluster of the other tests.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1" if address == "auto" else "")
    run = Run("smoke", "--backend", "ray", "--set", f"remote_backend.ray.address={address}", folder=tmp_path)
    assert run.process.wait(600) == 3
    told = (tmp_path / "stderr").read_text()
    assert f"no Ray cluster answers at remote_backend.ray.address = {address}: " in told
    assert "Traceback" not in told
    run.must_leave_nothing()


def test_smoke_of_two_ranks_and_two_samplers_apart_is_green(tmp_path: Path) -> None:
    options = [f"remote_backend.ray.{key}" for key in (
        "trainer_ranks=2", "sampler_replicas=2", "colocate=false", "cpus_per_rank=0.5", "cpus_per_sampler=0.5",
    )]  # fmt: skip
    arguments = [part for option in options for part in ("--set", option)]
    run = Run(
        "smoke", "--backend", "ray", "--steps", "6", "--format", "json", *SMALL, *arguments,
        "--set", "trainer.train_batch_size=8", folder=tmp_path,
    )  # fmt: skip
    out, _ = run.process.communicate(timeout=900)
    assert run.process.returncode == 0, (tmp_path / "stderr").read_text()
    result: Any = json.loads(out)
    assert len(result["steps"]) == 6
    run.must_leave_nothing()
