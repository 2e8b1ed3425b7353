"""The command line as a user meets it: a process, its two streams and its exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command_line import CLEAN, ROOT, environment, rlctl, start


def problems(folder: Path, count: int = 40) -> str:
    path = folder / "problems.jsonl"
    path.write_text("\n".join(json.dumps({"question": f"{i}?", "answer": f"#### {i}"}) for i in range(count)))
    return str(path)


def fake(tiny_llama: Path, folder: Path, *more: str, steps: int = 3) -> list[str]:
    """Options of a run on the fake backend that takes a second."""
    settings = [
        "backend=fake", f"model.path={tiny_llama}", f"data.path={problems(folder)}", "rollout.n=4",
        "rollout.max_response_length=6", "trainer.train_batch_size=4", f"trainer.steps={steps}", "data.eval_size=4",
        "reward.functions=tests.scores:digit_reward", "data.max_prompt_length=64", "data.prompt_suffix=",
        f"run.dir={folder / 'runs'}", "reward.num_workers=1", *more,
    ]  # fmt: skip
    return [word for setting in settings for word in ("--set", setting)]


PLUGIN = {"RLCTL_PLUGINS": "tests.fake_plugin"}


def refused(result: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """Told in a few lines on stderr, with nothing on stdout and no traceback."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    for part in parts:
        assert part in result.stderr, result.stderr


def test_version_and_help() -> None:
    assert rlctl("--version").stdout.startswith("rlctl 0.")
    text = rlctl("--help").stdout
    for command in ("train", "smoke", "check-backend", "config", "presets", "plugins"):
        assert command in text


def test_train_writes_steps_to_stdout_and_the_rest_to_stderr(tiny_llama: Path, tmp_path: Path) -> None:
    result = rlctl("train", "--preset", "smoke", *fake(tiny_llama, tmp_path), **PLUGIN)
    assert result.returncode == 0, result.stderr
    steps = [line for line in result.stdout.splitlines() if line.startswith("step ") and "score" in line]
    assert [line.split()[1] for line in steps if "/" in line.split()[1]] == ["1/3", "2/3", "3/3"]
    assert result.stderr.splitlines()[0].startswith("preset smoke")
    assert "model: " in result.stdout.splitlines()[-1]
    (run,) = (tmp_path / "runs").iterdir()
    resolved = json.loads((run / "config.resolved.json").read_text())
    assert resolved["settings"]["trainer"]["steps"] == 3
    assert resolved["origins"]["trainer.steps"] == "--set trainer.steps"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["train", "--set", "trainer.lrr=1"], ["trainer.lrr (from --set) is not a setting", "trainer.lr"]),
        (["train", "--set", "rollout.n=1"], ["rollout.n", "greater than or equal to 2"]),
        (["train", "--preset", "nope"], ["no preset is called 'nope'", "gsm8k-grpo"]),
        (["train", "--variant", "embeded"], ["Did you mean embedded?"]),
        (["train", "--backend", "rya"], ["backend = \"rya\" (from --backend)"]),
        (["train", "--steps", "0", "--dry-run"], ["trainer.steps = 0 (from --steps)"]),
        (["train", "--set", "model.path=/no/such/folder"], ["no such folder"]),
        (["train", "--set", "model.path=nobody/nothing", "--variant", "gpu"], ["nobody/nothing", "HF_HUB_OFFLINE"]),
        (["train", "--set", "data.path=nothing.jsonl"], ["nothing.jsonl"]),
        (["train", "--set", "data.source=generated:riddles"], ["generated:riddles", "word-problems"]),
        (["train", "--set", "reward.functions=gsm8"], ["gsm8", "gsm8k"]),
        (["train", "--set", "reward.functions=nomodule:f"], ["nomodule"]),
        (["train", "--config", "missing.toml"], ["missing.toml: no such file"]),
        (["train", "--name", "../x"], ["run.name"]),
        (["presets", "show", "smok"], ["Did you mean smoke?"]),
        (["config", "show", "--set", "seed=-1"], ["seed", "greater than or equal to 0"]),
        (["train", "--set", "trainer.train_batch_size=6", "--set", "trainer.mini_batch_size=4"], ["3 or 6", "4 or 8"]),
    ],
)  # fmt: skip
def test_bad_input_ends_with_2_and_the_cure(arguments: list[str], parts: list[str]) -> None:
    variant = (
        ["--variant", "embedded"] if arguments[0] == "train" and not {"--variant", "--preset"} & set(arguments) else []
    )
    refused_on_stderr(rlctl(*arguments, *variant), 2, *parts)


def test_letters_that_the_terminal_has_not_are_escapes(tmp_path: Path) -> None:
    (tmp_path / "\u0439").mkdir()
    (tmp_path / "\u0439" / "metrics.jsonl").touch()
    result = rlctl("runs", "list", "--dir", str(tmp_path), PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[1].startswith("\\u0439 ")


def refused_on_stderr(result: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr, result.stderr


def test_misspelt_variable_ends_with_2() -> None:
    refused(
        rlctl("config", "show", RLCTL_TRAINER_LR="1e-5"),
        2,
        "RLCTL_TRAINER_LR is not a setting. Did you mean RLCTL_TRAINER__LR?",
    )


def test_dry_run_prints_the_geometry_and_trains_nothing(tiny_llama: Path, tmp_path: Path) -> None:
    result = rlctl("train", "--preset", "smoke", "--dry-run", *fake(tiny_llama, tmp_path), **PLUGIN)
    assert result.returncode == 0, result.stderr
    assert "a step: 4 prompts, 16 samples, 1 update, at most 1,120 tokens" in result.stdout
    assert "the run: 3 steps (9 an epoch), 48 samples, 3 updates" in result.stdout
    assert not (tmp_path / "runs").exists()


def test_dry_run_counts_what_is_too_long(tiny_llama: Path, tmp_path: Path) -> None:
    # Field faults 040 and 045.
    too_small = fake(tiny_llama, tmp_path, "data.max_prompt_length=5")
    result = rlctl("train", "--preset", "smoke", "--dry-run", *too_small, **PLUGIN)
    refused_on_stderr(result, 2, "0 of", "rows left after length filter (max 5, shortest")


def test_fewer_rows_than_a_batch_is_an_error(tiny_llama: Path, tmp_path: Path) -> None:
    # Field fault 043.
    arguments = fake(tiny_llama, tmp_path)
    problems(tmp_path, 3)
    refused_on_stderr(rlctl("train", "--preset", "smoke", *arguments, **PLUGIN), 2, "3 rows < batch 4")


def test_a_model_without_a_chat_template_is_refused_before_it_is_loaded(tiny_llama: Path, tmp_path: Path) -> None:
    # Field fault 042.
    from tests.tiny import byte_tokenizer

    byte_tokenizer(template=None).save_pretrained(tmp_path / "plain")
    (tmp_path / "plain/config.json").write_text("{}")
    bare = fake(tiny_llama, tmp_path, f"model.tokenizer={tmp_path / 'plain'}")
    refused_on_stderr(
        rlctl("train", "--preset", "smoke", *bare, **PLUGIN), 2, "no chat template", "model.chat_template"
    )
    as_text = [*bare, "--set", "data.prompt_format=text"]
    assert rlctl("train", "--preset", "smoke", "--dry-run", *as_text, **PLUGIN).returncode == 0
    (tmp_path / "t.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    templated = [*bare, "--set", f"model.chat_template={tmp_path / 't.jinja'}"]
    assert rlctl("train", "--preset", "smoke", "--dry-run", *templated, **PLUGIN).returncode == 0


def test_a_backend_that_fails_ends_with_4_and_says_so(tiny_llama: Path, tmp_path: Path) -> None:
    # Field fault 105.
    arguments = fake(tiny_llama, tmp_path, "remote_backend.fake.fail_at_generate=2")
    refused_on_stderr(
        rlctl("train", "--preset", "smoke", *arguments, **PLUGIN),
        4,
        "BackendError: the sampler is gone.",
        "hint: start it again.",
    )


def test_a_reward_that_breaks_its_contract_ends_with_1(tiny_llama: Path, tmp_path: Path) -> None:
    arguments = fake(tiny_llama, tmp_path, "reward.functions=tests.scores:list_reward")
    refused_on_stderr(rlctl("train", "--preset", "smoke", *arguments, **PLUGIN), 1, "RewardError", "list of 1")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_no_error(unbuffered: str) -> None:
    # Field fault 100.
    command = f"{sys.executable} -m rlctl config show | head -1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, env={**CLEAN, "PYTHONUNBUFFERED": unbuffered}
    )
    assert result.stderr == ""
    first, status = result.stdout.splitlines()
    assert first.startswith("#")
    assert status in ("0", "141")


def test_negative_values_are_values() -> None:
    # Field fault 103: told to be out of range, not taken for an option.
    refused(rlctl("config", "show", "--set", "trainer.weight_decay=-0.1"), 2, "trainer.weight_decay")
    assert rlctl("config", "show", "--set", "rollout.top_k=-1").returncode == 0
    refused(rlctl("presets", "show", "-5"), 2)


def test_secrets_appear_nowhere(tiny_llama: Path, tmp_path: Path) -> None:
    # Field fault 102.
    environ = {"RLCTL_PLUGINS": "tests.secret_plugin", "RLCTL_REMOTE_BACKEND__SECRETIVE__TOKEN": "s3cr3t-xyz-1"}
    shown = rlctl("config", "show", **environ)
    assert "token" in shown.stdout
    wrong = rlctl("config", "show", "--set", "seed=x", **environ)
    ran = rlctl("train", "--preset", "smoke", *fake(tiny_llama, tmp_path, "backend=secretive"), **environ)
    files = "".join(p.read_text(errors="replace") for p in tmp_path.rglob("*.json*"))
    for text in (shown.stdout, shown.stderr, wrong.stderr, ran.stdout, ran.stderr, files):
        assert "s3cr3t-xyz-1" not in text


def test_config_show_is_toml_with_origins_and_json_of_the_same() -> None:
    import tomllib

    arguments = ["config", "show", "--preset", "gsm8k-grpo", "--variant", "cpu", "--set", "trainer.lr=2e-6"]
    text = rlctl(*arguments, RLCTL_SEED="7").stdout
    assert "lr = 2e-06  # --set trainer.lr" in text
    assert "seed = 7  # RLCTL_SEED" in text
    assert "train_batch_size = 4  # preset gsm8k-grpo, variant cpu" in text
    tree = tomllib.loads(text)
    content = json.loads(rlctl(*arguments, "--format", "json", RLCTL_SEED="7").stdout)
    assert tree["trainer"]["lr"] == content["settings"]["trainer"]["lr"] == 2e-6
    assert content["origins"]["seed"] == "RLCTL_SEED"
    assert content["origins"]["trainer.grad_clip"] == "default"


def test_what_config_show_prints_is_a_config_file(tmp_path: Path) -> None:
    arguments = ["config", "show", "--preset", "gsm8k-grpo", "--variant", "embedded"]
    (tmp_path / "saved.toml").write_text(rlctl(*arguments).stdout)
    again = rlctl("config", "show", "--config", str(tmp_path / "saved.toml"), "--format", "json")
    first = rlctl(*arguments, "--format", "json")
    assert json.loads(again.stdout)["settings"] == json.loads(first.stdout)["settings"]


def test_schema_is_json_schema() -> None:
    schema = json.loads(rlctl("config", "schema").stdout)
    assert schema["properties"]["trainer"]
    assert schema["$defs"]["TrainerSettings"]["properties"]["lr"]["description"] == "Peak learning rate."


def test_presets_lists_and_shows() -> None:
    listed = rlctl("presets").stdout
    assert "gsm8k-grpo: " in listed
    assert "--variant embedded" in listed
    assert rlctl("presets", "show", "smoke").stdout == (ROOT / "presets/smoke.toml").read_text()


def test_rewards_are_listed_and_described() -> None:
    assert "gsm8k: " in rlctl("rewards").stdout
    assert "1  gold '7'" in rlctl("rewards", "describe", "gsm8k").stdout
    refused(rlctl("rewards", "describe", "gms8k"), 2, "Did you mean gsm8k?")


def test_the_first_line_says_which_variant_and_why() -> None:
    result = rlctl("train", "--dry-run", CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stderr
    first = result.stdout.splitlines()[0]
    assert first == (
        "preset gsm8k-grpo, variant embedded (not gpu: CUDA_VISIBLE_DEVICES hides every device); "
        "another: --variant gpu|cpu"
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_with_its_code_and_a_checkpoint(
    tiny_llama: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    # Field fault 106.
    run = ["train", "--preset", "smoke", "--name", "x", *fake(tiny_llama, tmp_path, steps=10_000)]
    process = start(*run, cwd=ROOT, environ={**environment(), **PLUGIN})
    metrics = tmp_path / "runs/x/metrics.jsonl"
    for _ in range(600):
        if metrics.exists() and metrics.read_text().count("\n") > 3:
            break
        time.sleep(0.1)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "finishing the step" in err
    assert "model: " in out
    assert list((tmp_path / "runs/x/checkpoints").glob("step_*"))


def test_smoke_judges_the_fake_backend_and_says_why(tiny_llama: Path, tmp_path: Path) -> None:
    result = rlctl("smoke", "--steps", "2", *fake(tiny_llama, tmp_path), **PLUGIN)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "verdict: training works here" in result.stdout
    content = json.loads(rlctl("smoke", "--steps", "2", "-f", "json", *fake(tiny_llama, tmp_path), **PLUGIN).stdout)
    assert content["passed"] is True
    assert len(content["steps"]) == 2
    markdown = rlctl("smoke", "--steps", "2", "-f", "markdown", *fake(tiny_llama, tmp_path), **PLUGIN).stdout
    assert markdown.startswith("| step |")


def test_smoke_ends_with_4_when_a_check_does_not_hold(tiny_llama: Path, tmp_path: Path) -> None:
    flat = fake(tiny_llama, tmp_path, "reward.functions=tests.scores:one")
    result = rlctl("smoke", "--steps", "2", *flat, **PLUGIN)
    assert result.returncode == 4
    assert "FAIL signal to learn from: 0 of 8 groups" in result.stdout
    assert "verdict: training does not work here" in result.stdout
    broken = rlctl(
        "smoke", "--steps", "2", *fake(tiny_llama, tmp_path, "remote_backend.fake.nan_at_update=2"), **PLUGIN
    )
    assert broken.returncode == 4
    assert "FAIL gradients finite" in broken.stdout


def test_a_reward_module_that_exits_is_an_error_and_no_success(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)")
    for command in ("train", "smoke"):
        result = rlctl(command, "--preset", "smoke", "--set", "reward.functions=leaves:f", cwd=tmp_path)
        refused_on_stderr(result, 2, "leaves", "SystemExit")


def test_an_update_that_destroys_the_weights_ends_the_run(tmp_path: Path) -> None:
    result = rlctl("smoke", "--steps", "2", "--set", "trainer.lr=1e308", cwd=tmp_path)
    refused_on_stderr(result, 4, "NonFinite: the update at learning rate 1e+308 made the weight", "lower trainer.lr")


def test_smoke_keeps_the_steps_that_the_user_set(tiny_llama: Path, tmp_path: Path) -> None:
    content = json.loads(rlctl("smoke", "-f", "json", *fake(tiny_llama, tmp_path, steps=2), **PLUGIN).stdout)
    assert len(content["steps"]) == 2


def test_a_run_without_an_update_says_so(tiny_llama: Path, tmp_path: Path) -> None:
    result = rlctl(
        "train", "--preset", "smoke", *fake(tiny_llama, tmp_path, "reward.functions=tests.scores:one"), **PLUGIN
    )
    assert result.returncode == 0
    assert "no update was taken, so the model is the one that was loaded" in result.stdout


def test_questions_on_both_sides_are_told(tiny_llama: Path, tmp_path: Path) -> None:
    arguments = fake(tiny_llama, tmp_path)
    (tmp_path / "problems.jsonl").write_text('{"question": "same?", "answer": "1"}\n' * 40)
    result = rlctl("train", "--preset", "smoke", *arguments, **PLUGIN)
    assert "4 evaluation questions are also trained on" in result.stderr
    assert "not trained on" not in result.stdout


@pytest.mark.parametrize("command", ["config show", "presets", "--help", "plugins"])
def test_an_output_that_cannot_be_written_is_told_or_ended_by_the_pipe(command: str) -> None:
    run = f"{sys.executable} -m rlctl {command}"
    script = f"{run} > /dev/full; echo $?; {run} >&-; echo $?; {run} | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, env=CLEAN)
    assert "Traceback" not in result.stderr, result.stderr
    full, closed, pipe = result.stdout.split()
    assert full == "1"
    assert closed in ("0", "1")
    assert pipe in ("0", "141")


def test_a_nullable_setting_survives_the_round_trip(tmp_path: Path) -> None:
    text = rlctl("config", "show", "--set", "algorithm.clip_ratio_c=null").stdout
    (tmp_path / "saved.toml").write_text(text)
    again = json.loads(rlctl("config", "show", "--config", str(tmp_path / "saved.toml"), "-f", "json").stdout)
    assert again["settings"]["algorithm"]["clip_ratio_c"] is None
