"""Seconds of a step from measured rates, and none where nothing was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlctl.errors import ConfigError
from rlctl.planning.device import Machine
from rlctl.planning.rates import given, of_run, of_steps, seconds_of
from rlctl.planning.work import Flops, Lengths, Work

WORK = Work(4, 2, 4, 1, 0, 10, 50, Lengths(10, 50, "test"))
FLOPS = Flops(sample=1e9, score=0.0, update=6e9)


def step(number: int, **more: Any) -> dict[str, Any]:
    """8 samples of 50 tokens after prompts of 10, sampled in 2 s, updated in 3 s of 6 GFLOP, 1 s of rewards."""
    return {
        "training/global_step": number, "timing_s/step": 6.0, "timing_s/gen": 2.0, "timing_s/update_actor": 3.0,
        "timing_s/reward": 1.0, "perf/flops/actor": 6e9, "perf/sampled_tokens_per_s": 200.0,
        "perf/tokens_per_s": 80.0, "response_length/mean": 50.0, **more,
    }  # fmt: skip


def test_the_first_step_does_not_count() -> None:
    slow = step(1, **{"timing_s/update_actor": 300.0, "perf/sampled_tokens_per_s": 1.0})
    rates = of_steps([slow, step(2), step(3)], source="a run")
    assert rates.update_flops_per_s == 2e9
    assert rates.sampled_tokens_per_s == 200.0
    assert rates.source == "a run, median of 2 steps"


def test_lengths_of_prompts_follow_from_the_tokens_of_a_step() -> None:
    """80 tokens/s in 6 s are 480, of which 8 x 50 are sampled: 80 of 8 prompts."""
    rates = of_steps([step(2)], source="a run")
    assert rates.mean_prompt == pytest.approx(10.0)
    assert rates.mean_response == 50.0


def test_seconds_are_work_over_rates() -> None:
    seconds = seconds_of(WORK, FLOPS, of_steps([step(2)], source="a run"))
    assert seconds.phases == {"sample": 2.0, "update": 3.0, "rewards and weight sync": 1.0}
    assert seconds.total == 6.0


def test_without_a_rate_there_is_no_time_but_a_reason() -> None:
    machine = Machine("cuda", "GPU", 1, None, "", None, None, "no peak", is_this=False)
    seconds = seconds_of(WORK, FLOPS, given(machine, devices=1, mfu=None, sampled_tokens_per_s=None))
    assert seconds.total is None
    assert seconds.phases == {"sample": None, "update": None}
    assert len(seconds.reasons) == 2


def test_an_mfu_needs_a_peak() -> None:
    machine = Machine("cuda", "GPU", 1, None, "", None, None, "give --device", is_this=False)
    with pytest.raises(ConfigError, match=r"--mfu 0\.4 needs a peak"):
        given(machine, devices=1, mfu=0.4, sampled_tokens_per_s=None)


def test_an_mfu_is_a_share_of_the_peak_of_all_devices() -> None:
    machine = Machine("cuda", "H100", 8, None, "", None, 1e9, "data sheet", is_this=False)
    assert given(machine, devices=8, mfu=0.25, sampled_tokens_per_s=None).update_flops_per_s == 2e9


def test_a_metric_that_is_null_or_missing_is_no_rate() -> None:
    rates = of_steps([step(2, **{"perf/flops/actor": None, "perf/sampled_tokens_per_s": None})], source="a run")
    assert rates.update_flops_per_s is None
    assert rates.sampled_tokens_per_s is None
    assert rates.mean_prompt is None


def test_a_folder_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no step is in"):
        of_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"training/global_step": 0}) + "\n")
    with pytest.raises(ConfigError, match="no step is in"):
        of_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{half a li\n")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl:1 is not a JSON object"):
        of_run(tmp_path)


def test_what_can_be_read_of_damaged_metrics_is_taken(tmp_path: Path) -> None:
    """A run that is going, or was killed, ends within a line; a number may be none, text, or beyond any float."""
    whole = [step(n, **{"perf/flops/actor": 6e9, "timing_s/update_actor": 2.0}) for n in (1, 2, 3)]
    odd = [{**whole[0], "training/global_step": value} for value in ("4", None, 1e400, [5])]
    huge = {**whole[0], "training/global_step": 6, "perf/flops/actor": 10**400, "perf/sampled_tokens_per_s": 1e-320}
    lines = [json.dumps(one) for one in (*whole, *odd, huge)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, "[" * 50_000, lines[0][:40]]))
    rates = of_run(tmp_path)
    assert rates.update_flops_per_s == 3e9
    assert rates.source.endswith("median of 3 steps")
