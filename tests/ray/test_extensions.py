"""Builds of DeepSpeed's extensions: what was killed does not stop those that come later."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_stack")]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLCTL_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    return tmp_path


def folder_told() -> Path:
    """Where torch would build, inside."""
    return Path(os.environ["TORCH_EXTENSIONS_DIR"])


def test_a_lock_of_a_killed_build_is_removed_and_a_live_build_waited_for(cache: Path) -> None:
    from rlctl.backends.ray.extensions import building

    code = """
import os, time
from pathlib import Path
from rlctl.backends.ray.extensions import building
with building():
    operation = Path(os.environ["TORCH_EXTENSIONS_DIR"]) / "deepspeed_shm_comm"
    operation.mkdir()
    (operation / "lock").touch()
    print("locked", flush=True)
    time.sleep(600)
"""
    builder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert builder.stdout is not None
    assert builder.stdout.readline() == "locked\n"
    waiter = subprocess.Popen(
        [sys.executable, "-c", code.replace("operation.mkdir()", "operation.mkdir(exist_ok=True)")],
        stdout=subprocess.PIPE,
        text=True,
    )
    time.sleep(0.2)
    builder.kill()
    builder.wait()
    assert waiter.stdout is not None
    assert waiter.stdout.readline() == "locked\n"
    waiter.kill()
    waiter.wait()
    with building():
        assert not (folder_told() / "deepspeed_shm_comm/lock").exists()
    assert "TORCH_EXTENSIONS_DIR" not in os.environ


def test_a_folder_of_the_users_is_left_to_torch(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlctl.backends.ray.extensions import building

    own = cache / "own"
    (own / "op").mkdir(parents=True)
    (own / "op/lock").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(own))
    with building():
        assert folder_told() == own
    assert (own / "op/lock").exists()
