"""Whole runs against the fake backend: files, evaluations, checkpoints, failures, interruptions."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlctl import config, loop
from rlctl.errors import CheckpointError, ConfigError, DataError, NonFiniteGradient, RewardError
from rlctl.loop import Outcome
from rlctl.prepare import Prepared, batch_of, prepare
from rlctl.runfiles import RunFiles, strict
from tests.fakes import FakeBackend
from tests.runs import Recorder

pytestmark = pytest.mark.usefixtures("fake_backend")


def prepared(tiny_llama: Path, data: Path, *assignments: str, reward: str = "digit_reward") -> Prepared:
    base = [
        "backend=fake", f"model.path={tiny_llama}", f"data.path={data}", "data.max_prompt_length=64",
        f"reward.functions=tests.scores:{reward}", "rollout.n=4", "rollout.max_response_length=6",
        "trainer.train_batch_size=4", "trainer.steps=6", "trainer.save_freq=2", "trainer.eval_freq=3",
        "trainer.lr=1.0", "data.eval_size=4", "reward.num_workers=1",
    ]  # fmt: skip
    settings = config.load(assignments=[*base, *assignments], environ={"RLCTL_PLUGINS": "x"}).settings
    return prepare(settings)


def run(ready: Prepared, folder: Path, recorder: Recorder | None = None) -> tuple[Outcome, FakeBackend]:
    backend = loop.backend_for(ready)
    assert isinstance(backend, FakeBackend)
    files = RunFiles(folder, config={})
    outcome = asyncio.run(loop.run(ready, backend=backend, reporter=recorder or Recorder(), files=files))
    return outcome, backend


def lines(path: Path) -> list[dict[str, Any]]:
    def no_constant(name: str) -> None:
        raise AssertionError(name)

    return [json.loads(line, parse_constant=no_constant) for line in path.read_text().splitlines()]


def test_a_run_leaves_its_files(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    outcome, backend = run(prepared(tiny_llama, data), tmp_path / "run")
    metrics = lines(tmp_path / "run/metrics.jsonl")
    assert [m["training/global_step"] for m in metrics] == [0, 1, 2, 3, 4, 5, 6]
    evaluated = [m["training/global_step"] for m in metrics if any(key.startswith("val-core/") for key in m)]
    assert evaluated == [0, 3, 6]
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir()) == [
        "step_000002",
        "step_000004",
        "step_000006",
    ]
    assert (tmp_path / "run/checkpoints/step_000006/tokenizer.json").is_file()
    assert outcome.checkpoint == tmp_path / "run/checkpoints/step_000006"
    samples = lines(tmp_path / "run/samples.jsonl")
    assert len(samples) == 6 * 4
    assert {"step", "problem", "completion", "reward", "scores", "finish_reason"} <= set(samples[0])
    assert backend.closed
    assert outcome.exit_code == 0


def test_the_policy_learns_what_is_rewarded(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    outcome, _ = run(prepared(tiny_llama, data, "trainer.steps=40", "trainer.lr=2.0"), tmp_path / "run")
    scores = [m["score/mean"] for m in outcome.metrics]
    assert sum(scores[-5:]) / 5 > sum(scores[:5]) / 5 + 0.2


def test_metrics_have_the_names_of_the_field(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    outcome, _ = run(prepared(tiny_llama, data), tmp_path / "run")
    wanted = {
        "reward/mean", "score/mean", "reward/frac_zero_signal", "reward/solved_none", "reward/solved_some",
        "reward/solved_all", "advantages/mean", "advantages/min", "advantages/max", "actor/loss", "actor/pg_loss",
        "actor/kl_loss", "actor/ppo_kl", "actor/entropy", "actor/pg_clipfrac", "actor/grad_norm", "actor/lr",
        "response_length/mean", "response_length/min", "response_length/max", "response_length/clip_ratio",
        "training/rollout_probs_diff_mean", "training/rollout_probs_diff_max", "timing_s/gen", "timing_s/reward",
        "timing_s/old_log_prob", "timing_s/ref", "timing_s/update_actor", "timing_s/update_weights", "timing_s/step",
        "perf/mfu/actor", "perf/mfu/step", "perf/tflops_per_device", "perf/tokens_per_s",
        "perf/tokens_per_s_per_device", "perf/dedup_factor", "perf/max_memory_allocated_gb", "training/global_step",
        "training/epoch", "reward/tests.scores:digit_reward/mean",
    }  # fmt: skip
    assert wanted <= set(outcome.metrics[0])
    step, evaluation = outcome.evaluations[0]
    assert step == 0
    assert "val-core/problems/acc/mean@1" in evaluation


def test_a_gradient_that_is_not_finite_is_counted_and_skipped(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    # Field fault 021.
    recorder = Recorder()
    ready = prepared(tiny_llama, data, "remote_backend.fake.nan_at_update=3", "trainer.save_freq=1")
    outcome, backend = run(ready, tmp_path / "run", recorder)
    assert backend.version == 5
    assert [m["actor/skipped_updates"] for m in outcome.metrics] == [0, 0, 1, 0, 0, 0]
    assert any("step 3: the gradient's norm is nan" in note for note in recorder.notes)
    record = lines(tmp_path / "run/metrics.jsonl")[3]
    assert record["actor/grad_norm"] is None
    assert record["not_finite"] == ["actor/grad_norm"]


def test_too_many_bad_gradients_stop_the_run_and_keep_earlier_checkpoints(
    tiny_llama: Path, data: Path, tmp_path: Path
) -> None:
    settings = ("remote_backend.fake.nan_at_update=3", "trainer.save_freq=1", "trainer.max_skipped_updates=1")
    with pytest.raises(NonFiniteGradient, match="step 3"):
        run(prepared(tiny_llama, data, *settings), tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir()) == ["step_000001", "step_000002"]


def test_weights_that_are_not_finite_are_never_saved(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data, "trainer.save_freq=1")
    backend = loop.backend_for(ready)
    assert isinstance(backend, FakeBackend)
    recorder = Recorder()
    recorder.after_step = lambda step: backend.theta.fill(float("nan")) if step == 3 else None
    with pytest.raises(CheckpointError, match="not finite"):
        asyncio.run(loop.run(ready, backend=backend, reporter=recorder, files=RunFiles(tmp_path / "run", config={})))
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir()) == ["step_000001", "step_000002"]


def test_failed_rewards_are_left_out_counted_and_told(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    ready = prepared(tiny_llama, data, "eval.temperature=1", "eval.n=64", reward="failing_reward")
    outcome, _ = run(ready, tmp_path / "run", recorder)
    assert outcome.metrics[0]["reward/failed"] > 0
    assert any(note.startswith("step 1: ") and "cannot judge this" in note for note in recorder.notes)
    told = [note for note in recorder.notes if note.startswith("evaluation of step 0: ")]
    assert len(told) == 1
    assert re.search(r"\d+ completions? .* left out \(\d+ exception\): .*cannot judge this", told[0])


def test_a_reward_that_breaks_its_contract_stops_the_run_before_an_update(
    tiny_llama: Path, data: Path, tmp_path: Path
) -> None:
    # Field fault 006.
    ready = prepared(tiny_llama, data, reward="list_reward")
    backend = loop.backend_for(ready)
    assert isinstance(backend, FakeBackend)
    with pytest.raises(RewardError, match="list_reward must return one number"):
        asyncio.run(loop.run(ready, backend=backend, reporter=Recorder(), files=RunFiles(tmp_path / "run", config={})))
    assert "optim_step" not in backend.calls
    assert backend.closed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_step_saves_and_ends(
    tiny_llama: Path, data: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    recorder = Recorder()
    recorder.after_step = lambda step: os.kill(os.getpid(), number) if step == 3 else None
    # Wide of a checkpoint and of an evaluation, so that only the signal saves.
    outcome, backend = run(
        prepared(tiny_llama, data, "trainer.save_freq=50", "trainer.eval_freq=50"), tmp_path / "run", recorder
    )
    # The signal is seen when the loop next runs: after step 3, or 4 at the latest.
    done = len(outcome.metrics)
    assert done in (3, 4)
    assert outcome.exit_code == code
    assert (tmp_path / f"run/checkpoints/step_00000{done}").is_dir()
    assert backend.closed
    assert any("once more ends at once" in note for note in recorder.notes)


def test_every_problem_comes_once_an_epoch_in_a_new_order(tiny_llama: Path, data: Path) -> None:
    # Field fault 049, and 36 problems in batches of 4: 9 steps an epoch.
    ready = prepared(tiny_llama, data)
    epochs = [[p.id for step in range(first, first + 9) for p in batch_of(ready, step)[0]] for first in (1, 10)]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert len(set(epochs[0])) == 36
    assert epochs[0] != epochs[1]
    assert batch_of(ready, 10)[1] == 1
    again = prepared(tiny_llama, data)
    assert [p.id for p in batch_of(again, 10)[0]] == epochs[1][:4]
    other = prepared(tiny_llama, data, "seed=1")
    assert {p.id for p in other.problems} != {p.id for p in ready.problems} or batch_of(other, 1) != batch_of(ready, 1)


def test_a_folder_with_a_run_is_not_written_over(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    run(prepared(tiny_llama, data, "trainer.steps=1"), tmp_path / "run")
    before = (tmp_path / "run/metrics.jsonl").read_text()
    with pytest.raises(ConfigError, match="already holds a run"):
        run(prepared(tiny_llama, data, "trainer.steps=1"), tmp_path / "run")
    assert (tmp_path / "run/metrics.jsonl").read_text() == before


def test_a_full_disk_ends_the_run_and_leaves_no_half_checkpoint(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    # Field fault 127: the backend's file cannot be written.
    ready = prepared(tiny_llama, data, "trainer.save_freq=1", "trainer.save_in_background=false")
    backend = loop.backend_for(ready)
    plain_save = backend.save

    async def save(path: Path) -> None:
        if len(list((tmp_path / "run/checkpoints").glob("step_*"))) == 1:
            raise OSError(28, "No space left on device")
        await plain_save(path)

    backend.save = save  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match="No space left"):
        asyncio.run(loop.run(ready, backend=backend, reporter=Recorder(), files=RunFiles(tmp_path / "run", config={})))
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == ["step_000001"]


def test_numbers_that_are_not_finite_become_null_and_are_named() -> None:
    # Field fault 108.
    record = strict({"loss": float("nan"), "mfu": float("inf"), "lp": float("-inf"), "ok": 1.0})
    assert record == {"loss": None, "mfu": None, "lp": None, "ok": 1.0, "not_finite": ["loss", "lp", "mfu"]}


def test_sampling_is_sent_whole_whatever_the_model_says(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    # Field fault 139: the model's own generation settings are not asked.
    ready = prepared(tiny_llama, data)
    sampling = loop.grpo_config(ready.settings).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, -1, 0.0)


def test_evaluation_and_checkpoints_can_be_switched_off(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    ready = prepared(tiny_llama, data, "trainer.eval_freq=0", "trainer.save_freq=0")
    outcome, _ = run(ready, tmp_path / "run")
    assert outcome.evaluations == []
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == ["step_000006"]


def test_what_mfu_is_made_of_is_in_the_folder(tiny_llama: Path, data: Path, tmp_path: Path) -> None:
    run(prepared(tiny_llama, data), tmp_path / "run")
    machine = json.loads((tmp_path / "run/machine.json").read_text())
    assert (machine["peak_flops"], machine["peak_source"], machine["dtype"]) == (1e12, "made up", "float32")
    step = lines(tmp_path / "run/metrics.jsonl")[1]
    by_hand = step["perf/flops/actor"] / (step["timing_s/update_actor"] * machine["peak_flops"])
    assert step["perf/mfu/actor"] == pytest.approx(by_hand)


def test_a_generated_prompt_that_is_too_long_is_told_when_it_comes(tiny_llama: Path, data: Path) -> None:
    ready = prepared(
        tiny_llama, data, "data.path=null", "data.source=generated:word-problems", "data.max_prompt_length=400"
    )
    short = replace(ready, settings=config.load(assignments=["data.max_prompt_length=5"], environ={}).settings)
    with pytest.raises(DataError, match=r"longer than data\.max_prompt_length = 5 tokens"):
        batch_of(short, 1)
