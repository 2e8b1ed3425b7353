"""`rlctl smoke` with baselines, as a user meets it: processes, files and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlctl.baselines import file
from tests.baselines.synthetic import baseline
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
    options, path = local(tiny_llama, tmp_path), tmp_path / "base.json"
    written = rlctl("smoke", *STEPS, *options, "--runs", "2", "--write-baseline", str(path))
    assert written.returncode == 0, written.stdout + written.stderr
    assert f"baseline: 2 runs of 10 steps written to {path}" in written.stdout
    assert "run 2 of 2, about " in written.stderr
    assert written.stderr.count("effective algorithm: ") == 1
    judged = rlctl("smoke", *options, "--baseline", str(path), "--runs", "1", "-f", "json")
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

    against = ("--baseline", str(path), "--write-baseline", str(tmp_path / "more.json"))
    # The second of these runs would be compared no more than the first.
    other = rlctl("smoke", *local(tiny_llama, tmp_path, "trainer.lr=1e-4"), *against, "--runs", "2", "-f", "markdown")
    assert other.returncode == 5, other.stderr
    line = (
        "against the baseline: inconclusive, since nothing can be compared (trainer.lr: 0.0005 in the baseline, 0.0001"
    )
    assert line in other.stdout
    assert other.stdout.endswith("verdict: training works here; against the baseline: inconclusive\n")
    assert "own seconds" not in other.stdout
    assert "run 2 of 2" not in other.stderr
    assert "note: ended after run 1 of 2, since no run of these can be compared" in other.stderr

    tree = json.loads(path.read_text())
    for run in tree["runs"]:
        run["steps"][3]["loss"] += 1.0
    path.write_text(json.dumps(tree))
    changed = rlctl("smoke", *options, *against, "--runs", "1")
    assert changed.returncode == 4, changed.stdout
    assert "first differs at step 4: " in changed.stdout
    assert "was not written: the runs do something else than those of the baseline" in changed.stderr
    assert not (tmp_path / "more.json").exists()


def test_the_markdown_has_steps_comparison_machine_and_versions(tiny_llama: Path, tmp_path: Path) -> None:
    options, path = fake(tiny_llama, tmp_path, steps=10), tmp_path / "base.json"
    written = rlctl("smoke", *options, "--runs", "2", "--write-baseline", str(path), **PLUGIN)
    assert written.returncode == 0, written.stderr
    assert "run 1: 10 steps" in written.stdout
    assert "run 2: 10 steps" in written.stdout
    more = ("--baseline", str(path), "--runs", "1", "--write-baseline", str(tmp_path / "more.json"))
    result = rlctl("smoke", *options, *more, "-f", "markdown", **PLUGIN)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("| step | MFU | TFLOP/s | loss | score |")
    # What milliseconds without a reference beside them are called is up to the machine.
    assert lines[13].startswith("against the baseline, 1 run: ")
    assert lines[14].startswith(f"baseline: 3 runs of 10 steps written to {tmp_path / 'more.json'}")
    assert len(file.read(tmp_path / "more.json").runs) == 3
    assert lines[16].startswith("1 x fake, float32")
    assert "torch " in lines[17]
    assert "- pass          loss " in result.stdout


def test_a_run_that_does_not_work_writes_no_baseline(tiny_llama: Path, tmp_path: Path) -> None:
    broken = fake(tiny_llama, tmp_path, "remote_backend.fake.nan_at_update=2", steps=10)
    path = tmp_path / "base.json"
    result = rlctl("smoke", *broken, "--runs", "2", "--write-baseline", str(path), **PLUGIN)
    assert result.returncode == 4
    assert "was not written: the run does not work" in result.stderr
    assert not path.exists()


@pytest.mark.parametrize(("option", "runs"), [("--baseline", 10), ("--write-baseline", 20)])
def test_a_run_that_fails_ends_all_of_them_with_its_code(
    tiny_llama: Path, tmp_path: Path, option: str, runs: int
) -> None:
    broken, path = fake(tiny_llama, tmp_path, "remote_backend.fake.fail_at_generate=2", steps=10), tmp_path / "b.json"
    if option == "--baseline":
        file.write(path, baseline(runs=2))
    result = rlctl("smoke", option, str(path), *broken, **PLUGIN)
    refused_on_stderr(result, 4, f"run 1 of {runs}", "the sampler is gone.")
    assert f"run 2 of {runs}" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--write-baseline", "b.json", "--runs", "1"], ["--runs of at least 2"]),
        (["--write-baseline", "b.json", "--baseline", "none.json"], ["none.json: no such file"]),
        (["--write-baseline", "b.json", "--steps", "5"], ["trainer.steps = 5 (from --steps) are too few", "10"]),
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
