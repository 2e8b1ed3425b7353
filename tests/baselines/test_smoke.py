"""`rlctl smoke` with baselines, as a user meets it: processes, files and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import rlctl
from tests.test_cli import PLUGIN, fake, problems, refused_on_stderr

STEPS = ("--steps", "10")


def local(tiny_llama: Path, folder: Path, *more: str) -> list[str]:
    """Options of a run of the real engine that takes seconds."""
    settings = [
        f"model.path={tiny_llama}", "data.source=x", f"data.path={problems(folder)}", "rollout.n=4",
        "rollout.max_response_length=8", "trainer.train_batch_size=2", "data.eval_size=4", "data.prompt_suffix=",
        "reward.functions=tests.scores:digit_reward", "algorithm.drop_zero_signal_groups=false",
        "data.max_prompt_length=64", *more,
    ]  # fmt: skip
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.slow
def test_the_engine_repeats_its_baseline_to_the_last_bit(tiny_llama: Path, tmp_path: Path) -> None:
    options, file = local(tiny_llama, tmp_path), tmp_path / "base.json"
    written = rlctl("smoke", *STEPS, *options, "--runs", "2", "--write-baseline", str(file))
    assert written.returncode == 0, written.stdout + written.stderr
    assert f"baseline: 2 runs of 10 steps written to {file}" in written.stdout
    judged = rlctl("smoke", *options, "--baseline", str(file), "-f", "json")
    assert judged.returncode in (0, 4, 5), judged.stderr
    content = json.loads(judged.stdout)
    assert len(content["steps"]) == 10
    outcomes = {each["metric"]: each["outcome"] for each in content["baseline"]["findings"]}
    exact = (
        "FLOPs of the update",
        "FLOPs of sampling",
        "prompt tokens",
        "sampled tokens",
        "score",
        "loss",
        "grad norm",
    )
    assert {outcomes[metric] for metric in exact} == {"pass"}
    assert all(each["value"] is not None for each in content["baseline"]["findings"] if "update (" in each["metric"])

    other = rlctl("smoke", *local(tiny_llama, tmp_path, "trainer.lr=1e-4"), "--baseline", str(file), "-f", "markdown")
    assert other.returncode == 5, other.stderr
    line = (
        "against the baseline: inconclusive, since nothing can be compared (trainer.lr: 0.0005 in the baseline, 0.0001"
    )
    assert line in other.stdout

    tree = json.loads(file.read_text())
    for run in tree["runs"]:
        run["steps"][3]["loss"] += 1.0
    file.write_text(json.dumps(tree))
    changed = rlctl("smoke", *options, "--baseline", str(file))
    assert changed.returncode == 4, changed.stdout
    assert "first differs at step 4: " in changed.stdout


def test_the_markdown_has_steps_comparison_machine_and_versions(tiny_llama: Path, tmp_path: Path) -> None:
    options, file = fake(tiny_llama, tmp_path, steps=10), tmp_path / "base.json"
    written = rlctl("smoke", *options, "--runs", "2", "--write-baseline", str(file), **PLUGIN)
    assert written.returncode == 0, written.stderr
    assert "run 1: 10 steps" in written.stdout
    assert "run 2: 10 steps" in written.stdout
    result = rlctl("smoke", *options, "--baseline", str(file), "-f", "markdown", **PLUGIN)
    # Milliseconds without a reference beside them say nothing of speed.
    assert result.returncode == 5, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("| step | MFU | TFLOP/s | loss | score |")
    assert lines[13].startswith("against the baseline, 1 run: inconclusive - update (MFU)")
    assert lines[15].startswith("1 x fake, float32")
    assert "torch " in lines[16]
    assert "- pass          loss " in result.stdout


def test_a_run_that_does_not_work_writes_no_baseline(tiny_llama: Path, tmp_path: Path) -> None:
    broken = fake(tiny_llama, tmp_path, "remote_backend.fake.nan_at_update=2", steps=10)
    file = tmp_path / "base.json"
    result = rlctl("smoke", *broken, "--runs", "2", "--write-baseline", str(file), **PLUGIN)
    assert result.returncode == 4
    assert "was not written: the run does not work" in result.stderr
    assert not file.exists()


def test_a_run_that_fails_ends_all_of_them_with_its_code(tiny_llama: Path, tmp_path: Path) -> None:
    broken = fake(tiny_llama, tmp_path, "remote_backend.fake.fail_at_generate=2")
    refused_on_stderr(rlctl("smoke", "--runs", "2", *broken, **PLUGIN), 4, "run 1 of 2", "the sampler is gone.")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--write-baseline", "b.json", "--runs", "1"], ["--runs of at least 2"]),
        (["--write-baseline", "b.json", "--baseline", "b.json"], ["take one of the two"]),
        (["--write-baseline", "b.json", "--steps", "5"], ["trainer.steps = 5 (from --steps) are too few", "48"]),
        (["--write-baseline", "."], ["a folder of that name is there already"]),
        (["--write-baseline", "/proc/b.json"], ["/proc/b.json cannot be written"]),
        (["--baseline", "none.json"], ["none.json: no such file", "--write-baseline FILE"]),
        (["--runs", "0"], ["--runs"]),
    ],
)
def test_what_is_wrong_with_a_baseline_is_told_before_the_run(
    tmp_path: Path, arguments: list[str], parts: list[str]
) -> None:
    refused_on_stderr(rlctl("smoke", *arguments, cwd=tmp_path), 2, *parts)
    assert list(tmp_path.iterdir()) == []
