"""What a run does with its trackers, whatever they do: with trackers of somebody else's."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from rlctl.errors import BackendError, Interrupted
from rlctl.settings.tracking import TrackingSettings
from tests.trackers.lives import live


def foreign(kind: str, path: Path, **changes: Any) -> TrackingSettings:
    name = f"tests.trackers.foreign:{kind}"
    return TrackingSettings(trackers=[name], options={name: {"path": str(path)}}, **changes)


def calls(path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def steps(path: Path) -> list[int]:
    return [call[1] for call in calls(path) if call[0] == "log"]


def test_a_tracker_gets_the_numbers_of_each_step_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    notes, left = live(tmp_path / "run", foreign("Recording", path), [0, 1])
    assert notes == left == []
    begun, *logged, ended = calls(path)
    assert begun[:2] == ["start", "run"]
    assert begun[3:5] == [-1, -1]
    numbers = {"training/global_step": 1, "score/mean": 1.5, "val-core/gsm8k/acc/mean@8": 0.25}
    assert logged[1] == ["log", 1, numbers]
    assert [call[1] for call in logged] == [0, 1]
    assert ended == ["finish", "finished"]


def test_settings_go_along_with_origins_and_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    live(tmp_path / "run", foreign("Recording", path), [])
    parameters = calls(path)[0][5]
    version = parameters.pop("rlctl_version")
    assert version.count(".") == 2
    assert parameters == {
        "trainer.lr": 1e-06,
        "trainer.steps": 6,
        "trainer.mini_batch_size": None,
        "trainer.save_in_background": True,
        "reward.functions": '["gsm8k", "a.b:c"]',
        "remote_backend.x.address": "https://***@host/path",
        "tracking.options.a.b:C.max_tokens": 3,
        "preset": "gsm8k-grpo",
        "origin/trainer.lr": "RLCTL_TRAINER__LR",
    }


def test_one_that_raises_is_told_once_and_switched_off(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    notes, left = live(tmp_path / "run", foreign("Failing", path), range(6))
    name = "tests.trackers.foreign:Failing"
    told = f"tracker {name} is switched off, and the run goes on: ConnectionError: the server has gone"
    assert (notes, left) == ([told], [])
    assert steps(path) == [0, 1]
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 6


def test_one_that_would_end_the_process_only_ends_itself(tmp_path: Path) -> None:
    notes, _ = live(tmp_path / "run", foreign("Exiting", tmp_path / "calls"), range(3))
    assert notes == ["tracker tests.trackers.foreign:Exiting is switched off, and the run goes on: SystemExit: 1"]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (
            "Forgetful",
            "is switched off, and the run goes on: TypeError: start gave None, not the last step that is held",
        ),
        ("Unspeakable", "is switched off, and the run goes on: Broken"),
        ("FailingLast", "failed as it was ended: ConnectionError: the server has gone"),
    ],
)
def test_whatever_goes_wrong_is_told_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str, told: str
) -> None:
    notes, left = live(tmp_path / "run", foreign(kind, tmp_path / "calls"), range(3))
    assert (notes, left) == ([f"tracker tests.trackers.foreign:{kind} {told}"], [])
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 3
    assert capfd.readouterr() == ("", "")


def test_one_that_hangs_costs_the_run_nothing_and_is_left_behind(tmp_path: Path) -> None:
    settings = foreign("Hanging", tmp_path / "calls", queue_size=4, finish_timeout_s=0.2)
    pace: list[float] = []
    begun = time.monotonic()

    def end(followed: Any) -> None:
        pace.append(time.monotonic() - begun)
        followed.ended(75)

    notes, left = live(tmp_path / "run", settings, range(100), end=end)
    assert left == [75]
    assert pace[0] < 5  # one hundred writes, and the import of the tracker
    assert notes[0].endswith("does not keep up: steps are dropped; metrics.jsonl has them")
    assert "did not finish within 0.2 s: " in notes[1]
    waiting, dropped = (int(notes[i].split(": ")[1].split()[0]) for i in (1, 2))
    # One step is being logged, the others wait or were dropped.
    assert waiting in (3, 4)
    assert waiting + dropped == 99
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 100


def test_a_run_that_goes_on_sends_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    settings = foreign("Recording", path)
    live(tmp_path / "run", settings, range(5))
    live(tmp_path / "run", settings, range(3, 7), after=2)
    assert steps(path) == [0, 1, 2, 3, 4, 5, 6]
    first, second = (call for call in calls(path) if call[0] == "start")
    assert first[2] == second[2]
    assert second[3:5] == [2, 4]


def test_a_run_that_begins_again_sends_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    live(tmp_path / "run", foreign("Recording", path), range(3))
    live(tmp_path / "run", foreign("Recording", path), range(5), after=-1)
    assert steps(path) == [0, 1, 2, 3, 4]


def test_what_a_tracker_missed_is_sent_when_the_run_goes_on(tmp_path: Path) -> None:
    """One that failed at step 2 is mended, and one is added: both get all of it, after the checkpoint of step 3."""
    path, added = tmp_path / "calls", tmp_path / "added"
    live(tmp_path / "run", foreign("Failing", path), range(5))
    kept = tmp_path / "run/trackers/tests.trackers.foreign-Failing.json"
    assert json.loads(kept.read_text())["last_step"] == 1
    kept.rename(kept.with_name("tests.trackers.foreign-Recording.json"))
    live(tmp_path / "run", foreign("Recording", path), range(4, 6), after=3)
    assert steps(path) == [0, 1, 2, 3, 4, 5]
    # Under another name the same class is another tracker.
    other = "tests.trackers.foreign:Recording"
    kept.with_name("tests.trackers.foreign-Recording.json").unlink()
    live(tmp_path / "run", TrackingSettings(trackers=[other], options={other: {"path": str(added)}}), [6], after=5)
    assert steps(added) == [0, 1, 2, 3, 4, 5, 6]


def test_what_is_remembered_may_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    (tmp_path / "run/trackers").mkdir(parents=True)
    for text in ("", "{", "[1]", '{"last_step": "x"}'):
        (tmp_path / "run/trackers/tests.trackers.foreign-Recording.json").write_text(text)
        path.unlink(missing_ok=True)
        assert live(tmp_path / "run", foreign("Recording", path), [0, 1], after=-1)[0] == []
        assert steps(path) == [0, 1]


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (BackendError("gone"), "failed"),
        (ZeroDivisionError(), "failed"),
        (KeyboardInterrupt(), "interrupted"),
        (Interrupted("asked to end", 143), "interrupted"),
    ],
)
def test_trackers_are_told_how_a_run_broke(tmp_path: Path, error: BaseException, state: str) -> None:
    path = tmp_path / "calls"

    def end(followed: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        live(tmp_path / "run", foreign("Recording", path), [0], end=end)
    assert calls(path)[-1] == ["finish", state]


@pytest.mark.parametrize(
    ("code", "state"), [(0, "finished"), (130, "interrupted"), (143, "interrupted"), (75, "interrupted")]
)
def test_trackers_are_told_how_a_run_ended(tmp_path: Path, code: int, state: str) -> None:
    path = tmp_path / "calls"
    live(tmp_path / "run", foreign("Recording", path), [0], end=lambda followed: followed.ended(code))
    assert calls(path)[-1] == ["finish", state]
