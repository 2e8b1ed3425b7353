"""`rlctl train` and `rlctl resume` with trackers, with the fake backend, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlctl.commands.resume import resume
from rlctl.commands.train import train
from rlctl.errors import BackendError, ConfigError
from tests.test_resume_command import code_of, settings, trained
from tests.trackers.test_following import calls, steps

RECORDING = "tests.trackers.foreign:Recording"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLCTL_PLUGINS", "tests.fake_plugin")
    monkeypatch.chdir(tmp_path)


def recording(kind: str = "Recording") -> list[str]:
    name = f"tests.trackers.foreign:{kind}"
    return [f"tracking.trackers={name}", f'tracking.options={{"{name}": {{"path": "calls"}}}}']


def test_a_trained_run_is_tracked_and_goes_on_in_the_same_run(tiny_llama: Path, tmp_path: Path) -> None:
    assert trained(tiny_llama, tmp_path, *recording()) == 0
    assert code_of(resume, run="run", steps=5) == 0
    assert steps(tmp_path / "calls") == [0, 1, 2, 3, 4, 5]
    lines = [json.loads(line) for line in (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()]
    for line, (_, step, metrics) in zip(lines, (c for c in calls(Path("calls")) if c[0] == "log"), strict=True):
        assert step == line["training/global_step"]
        assert metrics == {k: v for k, v in line.items() if isinstance(v, int | float)}
    evaluated = [step for _, step, metrics in (c for c in calls(Path("calls")) if c[0] == "log")
                 if any(key.startswith("val-core/") for key in metrics)]  # fmt: skip
    assert evaluated == [0, 3, 5]
    begun = [call for call in calls(Path("calls")) if call[0] == "start"]
    assert begun[0][2] == begun[1][2]
    assert begun[0][5]["trainer.steps"] == 3
    assert begun[0][5]["origin/trainer.steps"] == "--steps"
    assert [call[1] for call in calls(Path("calls")) if call[0] == "finish"] == ["finished", "finished"]


def test_a_tracker_that_fails_leaves_the_run_as_it_would_have_been(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trained(tiny_llama, tmp_path, *recording("Failing")) == 0
    told = capsys.readouterr()
    assert told.err.count("is switched off, and the run goes on: ConnectionError: the server has gone") == 1
    assert "step 3/3" in told.out


def test_a_run_that_fails_is_told_as_failed(tiny_llama: Path, tmp_path: Path) -> None:
    more = [*recording(), "remote_backend.fake.fail_at_generate=3"]
    preset = tmp_path / "empty.toml"
    preset.write_text('summary = "nothing"\n')
    with pytest.raises(BackendError):
        train(
            preset=str(preset), backend="fake", steps=3, name="run", assignments=settings(tiny_llama, tmp_path, *more)
        )
    assert calls(Path("calls"))[-1] == ["finish", "failed"]


def test_what_a_tracker_lacks_is_said_before_the_first_step_and_by_a_dry_run(tiny_llama: Path, tmp_path: Path) -> None:
    more = ["tracking.trackers=no.such:Tracker"]
    preset = tmp_path / "empty.toml"
    preset.write_text('summary = "nothing"\n')
    for dry_run in (False, True):
        with pytest.raises(ConfigError, match="there is no module 'no'"):
            train(
                preset=str(preset), backend="fake", steps=3, name="run", dry_run=dry_run,
                assignments=settings(tiny_llama, tmp_path, *more),
            )  # fmt: skip
    assert not (tmp_path / "runs/run").exists()
