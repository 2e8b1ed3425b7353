"""A run for the view to show: metrics of plain figures, and one rollout."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlctl.live.state import State
from rlctl.types import Completion, Problem, Prompt, Rollout

HOSTILE = (
    "[/red] [bold] [link=http://x]\x1b[2J\x1b[31mred\x1b]0;title\x07 \x9b1m\r\b\x00\t|"
    "\u202eabc\u2066\u200b\u200d\ufeff\u2028\ud800 \U000e0041 漢字漢字 👩\u200d👩\ufe0f שלום مرحبا "
    "a\u0301\u0301\u0301\u0301\u0301\u0301 " + "x" * 5000 + "\n" * 30 + "漢" * 3000
)
"""All that a model may write to break a screen: markup, escapes, controls, bidirectional and zero-width characters, a
lone surrogate, wide characters, piled marks, and lines and texts of any length."""


def metrics(step: int, **changed: Any) -> dict[str, Any]:
    """0.6 s of sampling, 0.1 of scoring, 0.2 of update and 0.05 of sync in a step of one second."""
    record = {
        "training/global_step": step, "score/mean": 0.4 + 0.01 * step, "reward/mean": 0.5,
        "reward/solved_none": 0.1, "reward/solved_some": 0.6, "reward/solved_all": 0.3,
        "reward/frac_zero_signal": 0.4, "response_length/mean": 45.0, "response_length/clip_ratio": 0.01,
        "actor/entropy": 0.3, "actor/ppo_kl": 1.5e-5, "actor/kl_loss": 0.0, "actor/pg_clipfrac": 0.012,
        "actor/loss": -0.01, "actor/grad_norm": 0.12, "actor/updates": 1, "actor/skipped_updates": 0,
        "training/rollout_probs_diff_mean": 0.002, "timing_s/gen": 0.6, "timing_s/reward": 0.1,
        "timing_s/old_log_prob": 0.0, "timing_s/ref": 0.0, "timing_s/update_actor": 0.2,
        "timing_s/update_weights": 0.05, "timing_s/step": 1.0, "timing_s/save_checkpoint": 0.0,
        "perf/tokens_per_s": 20123.0, "perf/sampled_tokens_per_s": 30456.0, "perf/mfu/actor": 0.123,
        "perf/mfu/step": 0.051, "perf/tflops_per_device": 0.1, "perf/max_memory_allocated_gb": 1.25,
    }  # fmt: skip
    return record | {key.replace("__", "/"): value for key, value in changed.items()}


SOLUTION = "3 + 4 = 7\n#### 7"


def rollout(text: str = SOLUTION, *, question: str = "Three and four?", reward: float | None = 1.0) -> Rollout:
    problem = Problem("id", question, "7")
    completion = Completion(np.zeros(47, np.int32), np.zeros(47, np.float32), "stop")
    return Rollout(problem, Prompt(np.zeros(5, np.int32), 1), completion, text, reward, {"gsm8k": 1.0})


def state(steps: int = 12, *, total: int = 40, text: str = SOLUTION) -> State:
    """A run that began at 0 on the clock, and whose last step ended at 19 s."""
    made = State(title="run, model, local, float32 on 1 x cpu", total=total, eval_freq=10, max_response_length=64)
    for step in range(1, steps + 1):
        made.add(metrics(step))
    made.began, made.step_began = 0.0, 19.0
    made.rollout = rollout(text, question=text)
    made.waits = lambda: [("the evaluation", 10.0), ("32 x 8 completions (generate)", 17.5)]
    return made
