"""`rlctl config import` as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rlctl.cli import _run

YAML = "num_generations: 8\nper_device_train_batch_size: 8\nlearning_rate: 2e-6\nmax_steps: 10\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "trl.yaml"
    path.write_text(YAML, encoding="utf-8")
    return path


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = _run(["config", "import", *arguments])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_toml_goes_to_stdout_and_differences_to_stderr(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(str(config), "--num-devices", "2", "--reward", "gsm8k", capsys=capsys)
    assert code == 0
    made = tomllib.loads(out)
    assert made["trainer"]["train_batch_size"] == 2  # 8 a device x 2 devices / 8 a prompt
    assert made["trainer"]["lr"] == 2e-6
    assert "lr = 2e-06  # learning_rate = 2e-06" in out
    assert err.startswith("TRL 1.16.0, YAML: ")
    assert "not in the file: the peer's default differs" in err
    assert max(map(len, err.splitlines())) <= 120


@pytest.mark.parametrize("missing", ["--num-devices", "--reward"])
def test_what_is_left_behind_is_exit_code_1(config: Path, missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"--num-devices": "2", "--reward": "gsm8k"}
    given.pop(missing)
    code, out, err = run(str(config), *[word for pair in given.items() for word in pair], capsys=capsys)
    assert code == 1
    assert tomllib.loads(out)["trainer"]["lr"] == 2e-6
    assert missing in err


def test_files_are_written_and_never_overwritten_unasked(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, report = tmp_path / "made.toml", tmp_path / "report.md"
    words = [str(config), "-o", str(made), "--report", str(report), "--format", "markdown"]
    code, out, err = run(*words, capsys=capsys)
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert "| peer | value | rlctl | what to know |" in report.read_text(encoding="utf-8")
    before = made.read_bytes()
    config.write_text(YAML.replace("2e-6", "3e-6"), encoding="utf-8")
    code, out, err = run(*words, capsys=capsys)
    assert (code, made.read_bytes()) == (2, before)
    assert "is there already" in err
    assert run(*words, "--force", capsys=capsys)[0] == 1
    assert tomllib.loads(made.read_text(encoding="utf-8"))["trainer"]["lr"] == 3e-6


@pytest.mark.parametrize("option", ["-o", "--report"])
def test_the_input_is_not_the_output(config: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(str(config), option, str(config), "--force", capsys=capsys)
    assert (code, config.read_text(encoding="utf-8")) == (2, YAML)
    assert "is the file to translate" in err


def test_json_accounts_for_every_key(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run(str(config), "--format", "json", capsys=capsys)
    tree = json.loads(err)
    keys = [key for finding in tree["findings"] for key in finding["keys"]]
    assert sorted(keys) == ["learning_rate", "max_steps", "num_generations", "per_device_train_batch_size"]
    assert tree["changes_the_result"] is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "verl"], "--from verl, but it is a config of TRL"),
        (["--from", "tlr"], "Did you mean trl?"),
        (["--peer-version", "9"], "the defaults of TRL are known for 1.16.0, 0.18.0"),
        (["--var", "HOME"], "is not NAME=VALUE"),
        (["-o", "/nowhere/x.toml"], "its folder is not there"),
        (["-o", "/tmp"], "is a folder"),
    ],
)
def test_wrong_options_are_told(
    config: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(str(config), *arguments, capsys=capsys)
    assert (code, out) == (2, "")
    assert said in err


def test_variables_fill_in_what_the_file_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=$HOME/train.parquet "
        "actor_rollout_ref.rollout.n=8 actor_rollout_ref.model.path=$MODEL\n",
        encoding="utf-8",
    )
    _, out, err = run(str(script), capsys=capsys)
    assert "$HOME is not in the file" in err
    assert "data" not in tomllib.loads(out) or "path" not in tomllib.loads(out)["data"]
    _, out, _ = run(str(script), "--var", "HOME=/me", "--var", "MODEL=Qwen/Qwen3-0.6B", capsys=capsys)
    assert tomllib.loads(out)["data"]["path"] == "/me/train.parquet"
    assert tomllib.loads(out)["model"]["path"] == "Qwen/Qwen3-0.6B"


def test_no_control_character_of_a_file_reaches_the_terminal_or_the_toml(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(YAML + 'run_name: "\\e[31mred\\nlr = 9"\nsystem_prompt: "a\\u009bb\\nc"\n', encoding="utf-8")
    code, out, err = run(str(path), capsys=capsys)
    assert code == 1
    assert "\x1b" not in out + err
    assert "\x9b" not in err
    made = tomllib.loads(out)
    assert made["trainer"]["lr"] == 2e-6
    assert made["data"]["system_prompt"] == "a\x9bb\nc"


def test_a_narrow_terminal_and_standard_input(config: Path) -> None:
    command = [sys.executable, "-m", "rlctl", "config", "import", "-"]
    done = subprocess.run(
        command, input=YAML.encode(), capture_output=True, env={**os.environ, "COLUMNS": "40"}, check=False
    )
    assert done.returncode == 1
    assert tomllib.loads(done.stdout.decode())["trainer"]["lr"] == 2e-6
    prose = [line for line in done.stderr.decode().splitlines() if line.startswith("      ")]
    assert prose
    assert all(len(line) <= 40 or len(line.split()) == 1 for line in prose)


def test_all_writes_what_equals_the_defaults_too(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(str(config), "--all", capsys=capsys)
    trainer = tomllib.loads(out)["trainer"]
    assert trainer["betas"] == [0.9, 0.999]
    assert trainer["grad_clip"] == 1.0
