"""The embedded model and variant: what a newcomer's first command runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import rlctl


@pytest.mark.slow
def test_smoke_on_the_embedded_model_holds(tmp_path: Path) -> None:
    result = rlctl("smoke", "--format", "json", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    content = json.loads(result.stdout)
    assert len(content["steps"]) == 6
    for step in content["steps"]:
        assert 0 < step["perf/mfu/actor"] < 1
        assert step["perf/dedup_factor"] > 1.3
        assert step["training/rollout_probs_diff_max"] < 1e-3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_grpo_lifts_the_embedded_model_on_problems_it_never_trained_on(tmp_path: Path) -> None:
    """One seed here, and half of the variant's steps; `benchmarks/embedded_learning.py` runs five in full."""
    result = rlctl("train", "--variant", "embedded", "--steps", "20", "--name", "run", "--seed", "11", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    metrics = [json.loads(line) for line in (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()]
    held_out = [m["val-core/word-problems/acc/mean@1"] for m in metrics if "val-core/word-problems/acc/mean@1" in m]
    assert held_out[-1] >= 0.75
    assert held_out[-1] - held_out[0] >= 0.30
    assert "problems not trained on" in result.stdout
    assert loads_with_plain_transformers(tmp_path / "runs/run/checkpoints/step_000020")


def loads_with_plain_transformers(folder: Path) -> bool:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Mia has 3 pens."}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    return bool(model.generate(**prompt, max_new_tokens=4).shape[1] > prompt["input_ids"].shape[1])
