"""`rlctl train --preset bird-grpo` with nothing but what ships: the embedded variant, offline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import rlctl

GOLDEN = (
    "val-core/text-to-sql/reward/mean@1",
    "val-aux/text-to-sql/execution_success/mean@1",
    "val-aux/text-to-sql/format_correct/mean@1",
)


@pytest.mark.slow
def test_twenty_steps_offline_print_the_golden_metrics_and_lift_the_reward(tmp_path: Path) -> None:
    options = ("--preset", "bird-grpo", "--variant", "embedded", "--name", "run")
    result = rlctl("train", *options, cwd=tmp_path, COLUMNS="80")
    assert result.returncode == 0, result.stderr
    metrics = [json.loads(line) for line in (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()]
    assert [one["training/global_step"] for one in metrics] == list(range(21))
    assert all("reward/mean" in one for one in metrics[1:])
    for name in GOLDEN:
        assert name in result.stdout
        assert metrics[0][name] is not None
    assert metrics[20][GOLDEN[0]] - metrics[0][GOLDEN[0]] >= 0.2
