"""A disk that fails at any call of a save leaves a good checkpoint behind, and says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.slow
def test_a_save_that_fails_at_any_call_leaves_a_good_checkpoint(tiny_llama: Path, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler for the shim")
    shim = tmp_path / "faulty_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", shim, HERE / "faulty_disk.c", "-ldl"], check=True)
    disk = tmp_path / "disk"
    disk.mkdir()
    environment = os.environ | {
        "LD_PRELOAD": str(shim), "FAULT_ROOT": str(disk), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    result = subprocess.run(
        [sys.executable, "-m", "tests.checkpoints.faulty_saves", str(tiny_llama), str(disk)],
        capture_output=True, text=True, env=environment, cwd=ROOT, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    counts = json.loads(result.stdout.splitlines()[-1])
    for mode in ("disk full", "read-only", "half written"):
        # Ten files are made, filled, flushed and named: there are far more calls than files.
        assert counts[mode]["met"] > 40, counts
    # What comes after the name is the checkpoint's own: only the flush of the folder and the removal of older ones.
    assert counts["disk full"]["met"] - counts["disk full"]["refused"] <= 4, counts
    # A half write that is not one of a file's bytes changes nothing.
    assert counts["half written"]["refused"] > 10, counts
