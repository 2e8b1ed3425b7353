"""The plan against measured peaks, in processes of their own; a ratio of two figures of one run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SIZES = ["model.path=embedded:tiny", "data.max_prompt_length=96", "rollout.max_response_length=64", "rollout.n=8",
         "trainer.train_batch_size=32", "trainer.max_tokens_per_device=16384", "trainer.eval_freq=0"]  # fmt: skip


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    file = Path(__file__).resolve().parents[2] / "benchmarks" / "plan_memory.py"
    spec = importlib.util.spec_from_file_location("plan_memory", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("checkpointing", ["false", "true"])
def test_the_planned_peak_is_within_15_percent_of_the_measured_one(benchmark: Any, checkpointing: str) -> None:
    row = benchmark.in_a_process([*SIZES, f"local.gradient_checkpointing={checkpointing}"], allocator="returning")
    assert row["whole"]["ratio"] == pytest.approx(1.0, abs=0.15)
