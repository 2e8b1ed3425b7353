"""`rlctl reward check`, and the gold answers that are tried before a run, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rlctl.config import dump, load
from rlctl.data import load_problems
from rlctl.errors import ConfigError, RewardError
from rlctl.prepare import prepare
from rlctl.recorded import samples_of
from rlctl.runfiles import RunFiles
from rlctl.settings import DataSettings
from rlctl.types import Completion, Problem, Prompt, Rollout
from tests.command_line import rlctl
from tests.test_cli import PLUGIN, fake, problems, refused

CUSTOM = """
import os
def plain(problem, completion):
    return float(problem.answer in completion)
def stingy(problem, completion):
    return 0.5
stingy.gold_completion = lambda problem: problem.answer
def crashes(problem, completion):
    if sum(map(ord, completion)) % 4 == 0:
        os._exit(3)
    return float(len(completion))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "custom_rewards.py").write_text(CUSTOM)
    return tmp_path


def check(folder: Path, *arguments: str, reward: str = "gsm8k"):
    settings = [f"data.path={problems(folder)}", f'reward.functions=["{reward}"]', f"run.dir={folder / 'runs'}"]
    options = [word for setting in settings for word in ("--set", setting)]
    return rlctl("reward", "check", "--limit", "8", *options, *arguments, cwd=folder)


def test_a_good_reward_ends_with_0_and_a_table_on_stdout(folder: Path) -> None:
    result = check(folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("gsm8k: full marks are 1\ntext ")
    assert result.stdout.endswith("verdict: this reward can be trained on\n")
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_golds_without_full_marks_end_with_1(folder: Path) -> None:
    result = check(folder, reward="custom_rewards:stingy")
    assert result.returncode == 1
    assert "FAIL gold answers get full marks: 0 of 8 get 1" in result.stdout


def test_json_is_for_scripts(folder: Path) -> None:
    shown = json.loads(check(folder, "--format", "json").stdout)
    assert shown["passed"] is True
    assert shown["rewards"][0]["rows"][0] == {
        "kind": "gold answer", "count": 8, "low": 1.0, "mean": 1.0, "high": 1.0, "full": 8, "failures": {},
    }  # fmt: skip


def recorded(folder: Path) -> RunFiles:
    """A run's files, with two completions of its first step."""
    own = load(assignments=[f"data.path={problems(folder)}", 'reward.functions=["gsm8k"]'], environ={}).settings
    files = RunFiles(folder / "runs" / "one", config={"settings": dump(own)})
    ids = np.array([1], dtype=np.int32)
    completion = Completion(ids, np.zeros(1, dtype=np.float32), "stop")
    rollouts = [
        Rollout(Problem("problems:8", "7?", "#### 7"), Prompt(ids, 0), completion, text, score, {"gsm8k": score})
        for text, score in (("#### 7", 1.0), ("seven", 1.0))
    ]
    files.write_samples(1, rollouts)
    return files


def test_recorded_completions_of_a_run_are_scored(folder: Path) -> None:
    recorded(folder)
    result = check(folder, "--run", "one")
    assert "recorded completions: 2, mean score 0.5 (in the run 1; 1 differ)" in result.stdout, result.stderr
    assert "an answer can be read in 1 (50.0 %), found by: 1 hash, 1 none" in result.stdout


def test_a_run_is_checked_with_its_own_settings(folder: Path) -> None:
    recorded(folder)
    result = rlctl("reward", "check", "--limit", "8", "--run", str(folder / "runs" / "one"), cwd=folder)
    assert "settings of the run" in result.stderr
    assert "recorded completions: 2, mean score 0.5 (in the run 1; 1 differ)" in result.stdout, result.stderr


def test_a_run_is_named_or_its_folder_or_file_is_given(folder: Path) -> None:
    run = recorded(folder).folder
    whole = Problem("problems:8", "7?", "#### 7", source="problems")
    for name in ("one", str(run), str(run / "samples.jsonl")):
        samples = samples_of(name, run_dir=str(folder / "runs"), problems=[whole])
        assert [sample.completion for sample in samples] == ["#### 7", "seven"]
        assert all(sample.problem is whole for sample in samples)


def test_problems_made_on_the_spot_are_made_again_for_their_completions(tmp_path: Path) -> None:
    problems = load_problems(DataSettings(source="generated:text-to-sql"), split="train", seed=3)
    files = RunFiles(tmp_path, config={})
    ids = np.array([1], dtype=np.int32)
    completion = Completion(ids, np.zeros(1, dtype=np.float32), "stop")
    bare = Problem(problems[7].id, problems[7].question, problems[7].answer)
    files.write_samples(1, [Rollout(bare, Prompt(ids, 0), completion, "x", 1.0, {"sql": 1.0})])
    (sample,) = samples_of(str(tmp_path), run_dir=".", problems=problems)
    assert sample.problem == problems[7]
    assert sample.problem.extra["database"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no completions"),
        ('{"problem": "p"}', "samples.jsonl:1 is no recorded completion: KeyError: 'completion'"),
        ("\n{", "samples.jsonl:2 is no recorded completion: JSONDecodeError"),
        ("[1]", "samples.jsonl:1 is no recorded completion: TypeError"),
        (
            '{"problem": 1, "completion": "x", "question": "q", "answer": "a", "scores": {}}',
            "samples.jsonl:1 is no recorded completion: TypeError: a field is not text",
        ),
    ],
)
def test_a_file_that_holds_something_else_is_told_with_its_line(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "samples.jsonl").write_text(content)
    with pytest.raises(ConfigError) as caught:
        samples_of(str(tmp_path), run_dir="runs", problems=[])
    assert says in caught.value.message


def test_a_run_that_is_not_there_is_told_with_those_that_are(folder: Path) -> None:
    recorded(folder)
    with pytest.raises(ConfigError, match="no run 'two'") as caught:
        samples_of("two", run_dir=str(folder / "runs"), problems=[])
    assert caught.value.hint.endswith("runs: one.")


def test_an_unparsable_gold_is_told_with_its_line(folder: Path) -> None:
    path = folder / "bad.jsonl"
    path.write_text('{"question": "1?", "answer": "#### 1"}\n{"question": "2?", "answer": "#### two"}\n')
    refused(
        check(folder, "--set", f"data.path={path}"), 2, "bad.jsonl:2: problem bad:2: gold answer 'two' is not a number"
    )


def test_training_does_not_start_when_golds_do_not_get_full_marks(
    folder: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("RLCTL_PLUGINS", PLUGIN["RLCTL_PLUGINS"])
    words = fake(tiny_llama, folder, "reward.functions=custom_rewards:stingy")[1::2]
    with pytest.raises(RewardError, match=r"stingy gives 32 of 32 gold answers less than full marks \(1\)"):
        prepare(load(preset=None, assignments=words).settings)
    prepare(load(preset=None, assignments=[*words, "reward.check=false"]).settings)


def test_a_reward_that_kills_its_process_costs_completions_and_not_the_run(folder: Path, tiny_llama: Path) -> None:
    options = fake(tiny_llama, folder, "reward.functions=custom_rewards:crashes", steps=2)
    result = rlctl("train", *options, "--name", "r", cwd=folder, **PLUGIN, PYTHONPATH=_paths())
    assert result.returncode == 0, result.stderr
    assert "does not say how a right answer looks (gold_completion), so it was not tried" in result.stderr
    metrics = [json.loads(line) for line in (folder / "runs" / "r" / "metrics.jsonl").read_text().splitlines()]
    crashes = [step["reward/failures/crash"] for step in metrics if "reward/failed" in step]
    assert sum(crashes) > 0
    assert crashes == [step["reward/failed"] for step in metrics if "reward/failed" in step]
    assert " crash): custom_rewards:crashes on problems:" in result.stderr
    assert "its worker process died (exit status 3)" in result.stderr


def _paths() -> str:
    """The tests' own modules too, since the process works elsewhere."""
    return str(Path(__file__).resolve().parents[1])
