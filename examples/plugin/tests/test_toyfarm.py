"""The example as its author would test it: the contract through `rlctl check-backend --live`, and a short run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def rlctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlctl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_check_backend_live_is_green() -> None:
    done = rlctl("check-backend", "toyfarm", "--live", "--format", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {check["outcome"] for check in report["trial"]["checks"]} == {"ok"}
    (client,) = (part for part in report["parts"] if part["part"] == "client")
    styles = {method["name"]: method["found"] for method in client["methods"]}
    assert styles == {
        "create": "async", "sample": "async", "score": "async", "gradient": "sync", "step": "sync",
        "publish": "async", "save": "sync", "load": "sync", "close": "sync",
    }  # fmt: skip
    assert client["package"]["distribution"] == "rlctl-toyfarm"


def test_a_smoke_run_trains() -> None:
    small = ("trainer.train_batch_size=2", "rollout.max_response_length=16", "trainer.lr=1.0")
    reward = "reward.functions=rlctl_toyfarm.rewards:ascii_share"
    done = rlctl("smoke", "--backend", "toyfarm", "--steps", "3", *(f"--set={value}" for value in (*small, reward)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("setting", ["algorithm.kl_coef=0.1", "algorithm.entropy_coeff=0.1"])
def test_what_a_farm_cannot_do_is_refused_before_the_run(setting: str) -> None:
    done = rlctl("smoke", "--backend", "toyfarm", f"--set={setting}")
    assert done.returncode == 2
    assert "a toy farm has no" in done.stderr
