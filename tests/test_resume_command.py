"""`rlctl train` and `rlctl resume` on a folder that holds a run, with the fake backend, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from rlctl.commands.debug import replay
from rlctl.commands.resume import resume
from rlctl.commands.train import train
from rlctl.errors import ConfigError, RewardError
from tests import runs
from tests.runs import saved, without_times


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLCTL_PLUGINS", "tests.fake_plugin")
    monkeypatch.chdir(tmp_path)


def settings(model: Path, folder: Path, *more: str) -> list[str]:
    data = runs.write_problems(folder)
    return [
        f"model.path={model}", f"data.path={data}", "data.max_prompt_length=64", "rollout.n=4",
        "reward.functions=tests.scores:digit_reward", "rollout.max_response_length=6", "trainer.train_batch_size=4",
        "trainer.save_freq=1", "trainer.eval_freq=3", "trainer.lr=1.0", "data.eval_size=4", "reward.num_workers=1",
        *more,
    ]  # fmt: skip


def code_of(command: Any, **arguments: Any) -> int:
    with pytest.raises(typer.Exit) as caught:
        command(**arguments)
    return caught.value.exit_code


def trained(model: Path, folder: Path, *more: str, name: str | None = "run", steps: int = 3) -> int:
    assignments = settings(model, folder, *more)
    preset = folder / "empty.toml"
    preset.write_text('summary = "nothing"\n')
    return code_of(train, preset=str(preset), backend="fake", steps=steps, name=name, assignments=assignments)


def test_train_goes_on_and_a_complete_run_is_done(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trained(tiny_llama, tmp_path) == 0
    capsys.readouterr()
    assert trained(tiny_llama, tmp_path) == 0
    told = capsys.readouterr()
    assert "resumes after step 3 of 3 from step_000003" in told.err
    assert "model: runs/run/checkpoints/step_000003" in told.out
    assert "step 1/3" not in told.out


def test_resume_takes_the_runs_own_settings_and_those_given(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trained(tiny_llama, tmp_path) == 0
    assert code_of(resume, run="run", steps=5) == 0
    told = capsys.readouterr()
    assert f"settings of {tmp_path / 'runs/run'}" in told.err
    assert "changed since then: steps of the run: 3 -> 5: safe" in told.err
    assert "step 4/5" in told.out
    assert saved(tmp_path / "runs/run") == [f"step_{step:06d}" for step in range(1, 6)]
    assert trained(tiny_llama, tmp_path, name="straight", steps=5) == 0
    resumed, straight = (without_times(tmp_path / "runs" / name / "metrics.jsonl") for name in ("run", "straight"))
    # The first run evaluated after its last step, which is step 3 in both.
    assert resumed == straight


def test_a_run_that_was_moved_goes_on_where_it_is(tiny_llama: Path, tmp_path: Path) -> None:
    assert trained(tiny_llama, tmp_path) == 0
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs/run").rename(tmp_path / "elsewhere/moved")
    assert code_of(resume, run="elsewhere/moved", steps=4) == 0
    assert "step_000004" in saved(tmp_path / "elsewhere/moved")
    config = json.loads((tmp_path / "elsewhere/moved/config.resolved.json").read_text())
    assert config["settings"]["run"]["name"] == "moved"


def test_a_run_is_found_by_its_name_where_runs_are(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trained(tiny_llama, tmp_path, "run.dir=elsewhere", steps=2) == 0
    monkeypatch.setenv("RLCTL_RUN__DIR", "elsewhere")
    capsys.readouterr()
    assert code_of(resume, run="latest", steps=3) == 0
    assert "run.dir" not in capsys.readouterr().err
    assert "step_000003" in saved(tmp_path / "elsewhere/run")
    monkeypatch.delenv("RLCTL_RUN__DIR")
    (tmp_path / "mine.toml").write_text('run.dir = "elsewhere"')
    assert code_of(resume, run="run", steps=4, config="mine.toml") == 0
    assert "step_000004" in saved(tmp_path / "elsewhere/run")


def test_what_is_no_run_is_told(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run 'nothing'"):
        resume(run="nothing")
    with pytest.raises(ConfigError, match=r"there is no run .*runs/run to go on with"):
        train(preset=None, backend="fake", name="run", assignments=settings(tiny_llama, tmp_path, "run.resume=must"))  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()


def test_a_replay_of_no_dump_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a dump of a run"):
        replay(dump=tmp_path)


def test_a_checkpoint_is_evaluated_only_when_it_is_whole(tiny_llama: Path, tmp_path: Path) -> None:
    from rlctl.errors import CheckpointError
    from rlctl.eval_models import target

    assert trained(tiny_llama, tmp_path) == 0
    checkpoint = tmp_path / "runs/run/checkpoints/step_000002"
    assert target(str(checkpoint)).model == str(checkpoint)
    assert target("runs/run").model == "runs/run/checkpoints/step_000003"
    (checkpoint / "fake.npz").write_bytes(b"half")
    with pytest.raises(CheckpointError, match=r"fake\.npz has 4 bytes"):
        target(str(checkpoint))


def test_how_a_run_ended_stands_in_its_folder(tiny_llama: Path, tmp_path: Path) -> None:
    def ended() -> tuple[int, str]:
        content = json.loads((tmp_path / "runs/run/ended.json").read_text())
        return content["exit_code"], content["why"]

    with pytest.raises(RewardError):
        trained(tiny_llama, tmp_path, "reward.functions=tests.scores:refuses")
    assert ended()[0] == 1
    assert ended()[1].startswith("RewardError: the reward failed on all 4 completions")
    assert trained(tiny_llama, tmp_path) == 0
    assert ended() == (0, "")
    with pytest.raises(ConfigError, match="already holds a run"):
        trained(tiny_llama, tmp_path, "run.resume=never")
    assert ended() == (0, "")


def test_a_resumed_run_still_tells_where_its_settings_came_from(tiny_llama: Path, tmp_path: Path) -> None:
    assert trained(tiny_llama, tmp_path) == 0
    first = json.loads((tmp_path / "runs/run/config.resolved.json").read_text())
    for steps in (4, 5):
        assert code_of(resume, run="run", steps=steps, assignments=["trainer.eval_freq=1"]) == 0
    after = json.loads((tmp_path / "runs/run/config.resolved.json").read_text())
    assert (after["preset"], after["total_steps"]) == (first["preset"], 5)
    assert after["origins"]["trainer.lr"] == first["origins"]["trainer.lr"] == "--set trainer.lr"
    assert after["origins"]["seed"] == "default"
    assert after["origins"]["trainer.eval_freq"] == "--set trainer.eval_freq"
    assert after["origins"]["trainer.steps"] == "--steps"
