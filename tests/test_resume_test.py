"""Killed and resumed, the embedded model's run is the run that was not killed: through the command itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlctl.proving.comparing import compare

ROOT = Path(__file__).resolve().parents[1]
SMALL = ("trainer.train_batch_size=8", "rollout.n=4", "rollout.max_response_length=48", "data.eval_size=8")


def resume_test(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    sizes = [part for setting in SMALL for part in ("--set", setting)]
    command = [sys.executable, "-m", "rlctl", "resume-test", "--variant", "embedded", *sizes, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT)})


@pytest.mark.slow
def test_twenty_kills_change_nothing(tmp_path: Path) -> None:
    result = resume_test("--kills", "20", "--steps", "6", "--keep", "kept", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "the killed run is the straight run, bit for bit" in result.stdout
    assert "killed: 20 times" in result.stdout
    assert "saving" in result.stdout
    metrics = [json.loads(line) for line in (tmp_path / "kept/straight/metrics.jsonl").read_text().splitlines()]
    assert sum(m.get("actor/updates", 0) for m in metrics) >= 4
    must_see_a_difference(tmp_path / "kept")


def must_see_a_difference(kept: Path) -> None:
    """The comparison is worth something: a digit in a metric, a sample or a weight is found."""
    assert compare(kept / "straight", kept / "killed0").same
    metrics = kept / "killed0/metrics.jsonl"
    text = metrics.read_text()
    value = json.loads(text.splitlines()[-1])["actor/entropy"]
    metrics.write_text(text.replace(repr(value), repr(value + 1e-12)))
    different = compare(kept / "straight", kept / "killed0")
    assert len(different.differences) == 1
    assert "actor/entropy" in different.differences[0]
    metrics.write_text("".join(text.splitlines(keepends=True)[:-1]))
    assert "has the steps" in compare(kept / "straight", kept / "killed0").differences[0]
