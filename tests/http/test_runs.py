"""Whole runs of `rlctl train --backend http`: bit for bit the local run, also after the driver was killed."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rlctl.commands.resume import _settings_of
from tests.command_line import environment, rlctl, start
from tests.http import servers
from tests.http.servers import TOKEN, Server
from tests.runs import lines, without_times

pytestmark = pytest.mark.slow

SMALL = {
    "model.path": "embedded:tiny", "trainer.steps": 4, "trainer.train_batch_size": 4, "rollout.n": 4,
    "trainer.save_freq": 1, "trainer.eval_freq": 2, "data.eval_size": 4,
    "algorithm.drop_zero_signal_groups": "false", "algorithm.kl_coef": 0.01,
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = servers.start(tmp_path_factory.mktemp("serve"), "serve.lease_s=60")
    yield server
    server.end()


def train(folder: Path, *options: str, server: Server | None = None) -> subprocess.Popen[str]:
    assignments = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    environ = environment()
    if server is not None:
        environ |= {"RLCTL_REMOTE_BACKEND__HTTP__TOKEN": TOKEN, "RLCTL_REMOTE_BACKEND__HTTP__URL": server.url}
        assignments += ["--backend", "http"]
    command = ["train", "--variant", "embedded", "--name", folder.name, *assignments]
    command += ["--set", f"run.dir={folder.parent}", *options]
    return start(*command, cwd=Path.cwd(), environ=environ, stderr=subprocess.STDOUT)


def ended(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    return said


def weights(folder: Path) -> dict[str, bytes]:
    last = folder / "checkpoints" / f"step_{SMALL['trainer.steps']:06}"
    return {path.name: path.read_bytes() for path in last.rglob("*.safetensors")}


def session_of(server: Server) -> str:
    info = httpx.get(f"{server.url}/info", headers={"Authorization": f"Bearer {TOKEN}"}).json()
    return str(info["session"]["session"])


def test_a_run_over_http_is_the_local_run_bit_for_bit_also_after_its_driver_died(
    server: Server, tmp_path: Path
) -> None:
    ended(train(tmp_path / "local"))
    ended(train(tmp_path / "http", server=server))
    expected = without_times(tmp_path / "local" / "metrics.jsonl")
    assert len(expected) == 5  # with the evaluation before the first step
    assert all(record["actor/grad_norm"] > 0 for record in expected[1:])
    assert without_times(tmp_path / "http" / "metrics.jsonl") == expected
    assert weights(tmp_path / "http") == weights(tmp_path / "local")
    assert samples(tmp_path / "http") == samples(tmp_path / "local")

    killed = train(tmp_path / "killed", server=server)
    until_saved(tmp_path / "killed", 2, killed)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    session = session_of(server)
    # It was heard a moment before, so that the line is where to wait.
    ended(train(tmp_path / "killed", "--attach", session, "--queue", server=server))
    assert "attach" not in _settings_of(tmp_path / "killed").values["remote_backend"]["http"]
    assert without_times(tmp_path / "killed" / "metrics.jsonl") == expected
    assert weights(tmp_path / "killed") == weights(tmp_path / "local")
    log = server.log.read_text()
    assert log.count(f"session {session}: opened by") == log.count(f"session {session}: taken up by") == 1


def until_saved(folder: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Wait until a line of that step is written, and a checkpoint, which is written beside the steps that follow it."""
    metrics, line = folder / "metrics.jsonl", f'"training/global_step": {step},'
    while not (metrics.exists() and line in metrics.read_text() and any(folder.glob("checkpoints/step_*"))):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def samples(folder: Path) -> list[dict[str, object]]:
    return [
        {key: value for key, value in record.items() if "second" not in key and "time" not in key}
        for record in lines(folder / "samples.jsonl")
    ]


def test_a_smoke_run_over_http_is_green(server: Server) -> None:
    done = rlctl(
        "smoke", "--backend", "http", "--steps", "3", "--format", "json",
        "--set", f"remote_backend.http.url={server.url}", RLCTL_REMOTE_BACKEND__HTTP__TOKEN=TOKEN,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["checks"]
