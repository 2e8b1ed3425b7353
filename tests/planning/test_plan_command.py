"""`rlctl plan` as a user meets it: exit codes, formats, hostile input, and backends that say nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rlctl.cli import app
from rlctl.config import load
from rlctl.errors import ConfigError
from rlctl.planning.device import Wanted
from rlctl.planning.plan import plan_of
from tests.planning.models import PARAMETERS, config_folder


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return config_folder(tmp_path_factory.mktemp("models") / "qwen3")


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments])


def for_qwen3(model: Path, *arguments: str) -> Result:
    sets = ["--preset", "gsm8k-grpo", "--variant", "gpu", "--set", f"model.path={model}"]
    return ran(*sets, *arguments)


def as_json(result: Result) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_a_run_that_fits_exits_with_0(qwen3: Path) -> None:
    result = for_qwen3(qwen3, "--device", "H100", "--memory-gb", "256")
    assert result.exit_code == 0
    assert "verdict: fits" in result.stdout
    assert "989 TFLOP/s (data sheet of H100, dense bfloat16)" in result.stdout


def test_a_run_that_does_not_exits_with_4_and_names_a_change(qwen3: Path) -> None:
    result = for_qwen3(qwen3, "--gpu-memory-gb", "45")
    assert result.exit_code == 4
    lines = result.stdout.splitlines()
    assert "verdict: does not fit" in lines
    assert "the cheapest change: --set trainer.max_tokens_per_device=4096" in lines


def test_no_line_is_wider_than_the_terminal(qwen3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlctl.planning import fitting, rates, table

    settings = load(assignments=[f"model.path={qwen3}"]).settings
    plan = plan_of(settings, Wanted(gpu_memory_gb=24))
    cure = fitting.cheapest_cure(settings, plan)
    found = rates.given(plan.machine, devices=1, mfu=None, sampled_tokens_per_s=None)
    seconds = rates.seconds_of(plan.work, plan.flops, found)
    for width in (80, 160):
        text = table.render(plan, rates=found, seconds=seconds, cure=cure, notes=(), style="table", width=width)
        assert max(map(len, text.splitlines())) <= width


def test_json_holds_every_figure(qwen3: Path) -> None:
    document = as_json(for_qwen3(qwen3, "--device", "H100", "--mfu", "0.4", "--format", "json"))
    assert document["fits"] is True
    assert document["model"]["parameters"] == PARAMETERS
    flops, seconds = document["step"]["flops"]["update"], document["step"]["seconds"]
    assert seconds["update"] == pytest.approx(flops / (0.4 * 989e12))
    assert seconds["total"] is None
    (device, _) = document["places"]
    held = sum(role["num_bytes"] for role in device["roles"] if "update" in role["phases"])
    assert device["bytes_by_phase"]["update"] == held


def test_markdown_is_a_table_to_paste(qwen3: Path) -> None:
    result = for_qwen3(qwen3, "--device", "H100", "--format", "markdown")
    assert "| role | GiB | held in | how it comes about |" in result.stdout


def test_lengths_that_are_given_change_tokens_and_not_memory(qwen3: Path) -> None:
    sets = ("--device", "H100", "--format", "json")
    most = as_json(for_qwen3(qwen3, *sets))
    short = as_json(for_qwen3(qwen3, *sets, "--response-tokens", "256"))
    assert short["step"]["sampled_tokens"] == most["step"]["sampled_tokens"] / 4
    assert short["places"] == most["places"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--device", "H1000"), "--device H1000 is in no data sheet"),
        (("--device", "cpu", "--num-gpus", "2"), "--num-gpus = 2 describes GPUs"),
        (("--gpu-memory-gb", "80", "--mfu", "0.3"), "--mfu 0.3 needs a peak"),
        (("--run", "nowhere"), "no run 'nowhere'"),
        (("--run", "x", "--mfu", "0.3"), "rates come from one source"),
        (("--gpu-memory-gb", "80", "--measure"), "--measure runs on this machine"),
        (("--response-tokens", "9999"), "--response-tokens 9999 is more than rollout.max_response_length = 1024"),
        (("--set", "model.lora.rank=4", "--set", 'model.lora.target_modules=["nope"]'), "names nope, which this model"),
        (("--gpu-memory-gb", "inf"), "--gpu-memory-gb = inf must be a number"),
        (("--peak-tflops", "1e308"), "--peak-tflops = 1e+308 must be a number above 0 and below 1e+12"),
        (("--sampled-tokens-per-s", "inf"), "--sampled-tokens-per-s = inf must be below 1e+12"),
        (("--device", "H100", "--set", "rollout.max_response_length=40000"), "the model's context is 40960"),
        (("--set", "local.kv_cache_gb=0.001"), "the keys and values of one group take"),
    ],
)
def test_what_cannot_be_is_one_sentence_with_its_value(qwen3: Path, arguments: tuple[str, ...], complaint: str) -> None:
    result = for_qwen3(qwen3, *arguments)
    assert result.exit_code != 0
    assert complaint in getattr(result.exception, "message", str(result.exception))


@pytest.mark.parametrize("value", ["0", "-8", "nan", "eight"])
def test_a_size_that_is_none_is_refused(qwen3: Path, value: str) -> None:
    assert for_qwen3(qwen3, "--gpu-memory-gb", value).exit_code == 2


def test_a_backend_without_the_hook_says_nothing_and_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCTL_PLUGINS", "tests.fake_plugin")
    document = as_json(ran("--preset", "smoke", "--backend", "fake", "--format", "json"))
    assert document["places"] == []
    assert document["places_note"] == "the backend fake does not say what it holds"
    assert document["fits"] is None


def test_a_folder_with_nothing_but_a_config_is_enough(qwen3: Path) -> None:
    assert [file.name for file in qwen3.iterdir()] == ["config.json"]
    assert for_qwen3(qwen3, "--device", "H100").exit_code == 0


def test_a_model_that_is_nowhere_says_what_a_plan_needs() -> None:
    with pytest.raises(ConfigError) as told:
        plan_of(load(assignments=["model.path=nobody/nothing"]).settings, Wanted(device="H100"))
    assert "config.json" in told.value.hint


def test_prompts_that_ranks_do_not_divide_are_noted_with_the_nearest(qwen3: Path) -> None:
    ranks = ("--set", "remote_backend.ray.trainer_ranks=6", "--set", "remote_backend.ray.sampler_replicas=6")
    document = as_json(
        for_qwen3(qwen3, "--backend", "ray", "--device", "H100", "--num-gpus", "8", *ranks, "-f", "json")
    )
    assert any("nearest that do: 30 or 36" in note for note in document["notes"])
    assert any("uses 6 of 8 GPUs" in note for note in document["notes"])


def test_a_run_gives_its_rates_and_lengths_by_name(
    qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 samples of 50 tokens after prompts of 10, sampled in 2 s; what it ran on is another device and model."""
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    step = {
        "training/global_step": 1, "timing_s/step": 6.0, "timing_s/gen": 2.0, "timing_s/update_actor": 3.0,
        "timing_s/reward": 1.0, "perf/flops/actor": 6e9, "perf/sampled_tokens_per_s": 200.0,
        "perf/tokens_per_s": 80.0, "response_length/mean": 50.0,
    }  # fmt: skip
    (folder / "metrics.jsonl").write_text(json.dumps(step) + "\n")
    (folder / "machine.json").write_text(json.dumps({"device": "cpu"}))
    (folder / "config.resolved.json").write_text(json.dumps({"settings": {"model": {"path": "embedded:tiny"}}}))
    monkeypatch.chdir(tmp_path)
    document = as_json(for_qwen3(qwen3, "--device", "H100", "--run", "mine", "--format", "json"))
    assert document["step"]["lengths"]["prompt"] == pytest.approx(10)
    assert document["step"]["seconds"]["sample"] == 256 * 50 / 200
    assert any("those of the device cpu" in note for note in document["notes"])
    assert any("those of the model embedded:tiny" in note for note in document["notes"])


@pytest.mark.slow
def test_rates_are_measured_here_and_now() -> None:
    small = ("--set", "trainer.train_batch_size=8", "--set", "rollout.n=4")
    result = ran("--preset", "smoke", *small, "--measure", "--format", "json")
    assert result.exit_code == 0
    step = as_json(result)["step"]
    assert step["rates"]["source"] == "measured now, median of 2 steps"
    assert step["seconds"]["total"] > 0
