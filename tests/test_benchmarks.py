"""The benchmarks run, on shapes so small that their figures mean nothing; the ratio is the last line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SIZES = ("--prompts", "2", "--n", "2", "--prompt", "8", "--response", "6")

pytestmark = pytest.mark.slow


def last_line(script: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    report: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return report


def test_gpu_checks_exactness_and_measures_where_there_is_no_gpu() -> None:
    report = last_line("gpu.py", "--shape", "tiny", *SIZES, "--tokens", "64", "--repetitions", "1")
    assert report["tok_s_tiny"] > 0
    assert 0 < report["mfu_tiny"] < 1


@pytest.mark.parametrize("script", ["update.py", "vs_hf_generate.py"])
def test_two_sides_in_turns_give_a_ratio(script: str) -> None:
    report = last_line(script, "--model", "embedded:tiny", *SIZES, "--repetitions", "1")
    assert report["ratio"] > 0
    assert report["work"] == "2 x 2 x 6, prompts of 8, bfloat16"


@pytest.mark.ray  # vLLM leaves its mark in shared memory, which those tests watch.
def test_vllm_is_compared_or_missed_with_a_reason() -> None:
    report = last_line("vs_vllm_cpu.py", "--model", "embedded:tiny", *SIZES, "--repetitions", "1")
    assert report.get("ratio", 0) > 0 or report["skipped"] == "vllm is not installed"


def test_grading_makes_no_wrong_verdict() -> None:
    report = last_line("grading.py", "--answers", "4000")
    assert (report["answers"], report["wrong_verdicts"]) == (4000, 0)


def test_the_live_view_costs_less_than_half_a_percent_of_a_step() -> None:
    report = last_line("live_view.py", "--steps", "4", "--prompts", "8")
    assert 0 < report["share"] < 0.02  # four times the promise: the first pictures load what draws them
