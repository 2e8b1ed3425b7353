"""The named trackers through their real libraries, offline: a life is cut off after step 4, and the next one goes on
from the checkpoint of step 2, so that steps 3 and 4 are computed again, here with other numbers."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlctl.settings.tracking import TrackingSettings
from rlctl.trackers.following import Following
from tests.trackers import wandb_files
from tests.trackers.lives import live, record


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_API_KEY", "WANDB_DIR", "WANDB_RUN_ID", "TRACKIO_SPACE_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["rlctl", "--set", "x.token=s3cr3t-typed"])


def two_lives(folder: Path, settings: TrackingSettings) -> None:
    assert live(folder, settings, range(5), score=0.5, end=interrupt_when_sent) == ([], [])
    assert live(folder, settings, range(3, 7), after=2, score=100.0) == ([], [])


def interrupt_when_sent(followed: Following) -> None:
    """A store that is made for the first time takes longer than the seconds that a signal leaves."""
    wait_until_sent(followed, 4)
    followed.ended(143)


def wait_until_sent(followed: Following, step: int) -> None:
    (worker,) = followed.workers
    deadline = time.monotonic() + 60
    while worker.kept.last_step < step and time.monotonic() < deadline:
        time.sleep(0.01)


SEEN_ONCE = [(0, 0.5), (1, 1.5), (2, 2.5), (3, 3.5), (4, 4.5), (5, 105.0), (6, 106.0)]
"""(step, score) where steps cannot be taken back."""


def test_tensorboard_shows_the_steps_that_count(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    two_lives(tmp_path / "run", TrackingSettings(trackers=["tensorboard"]))
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    scores = [(event.step, event.value) for event in events.Scalars("score/mean")]
    assert scores == [(0, 0.5), (1, 1.5), (2, 2.5), (3, 103.0), (4, 104.0), (5, 105.0), (6, 106.0)]
    assert sorted(events.Tags()["scalars"]) == ["score/mean", "training/global_step", "val-core/gsm8k/acc/mean@8"]
    settings = events.Tensors("settings")[-1].tensor_proto.string_val[0].decode()
    assert "| trainer.lr | 1e-06 |" in settings
    assert "| origin/trainer.lr | RLCTL_TRAINER__LR |" in settings
    assert "s3cr3t" not in settings


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_folder_that_is_removed_in_the_middle_is_told_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    """Their libraries tell of it in a traceback from another thread, or not at all."""
    folder = tmp_path / "run"

    def remove(followed: Following) -> None:
        wait_until_sent(followed, 4)
        shutil.rmtree(folder / name)
        for step in (5, 6):
            followed.write(record(step, 0.5))
        followed.ended(0)

    notes, left = live(folder, TrackingSettings(trackers=[name], wandb={"mode": "offline"}), range(5), end=remove)
    assert len(notes) == 1, notes
    assert notes[0].startswith(f"tracker {name} ")
    assert f"{folder}/{name}" in notes[0]
    assert left == []
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_under_tensorboard_is_told_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"

    def fill(followed: Following) -> None:
        wait_until_sent(followed, 2)
        (file,) = (folder / "tensorboard").iterdir()
        file.unlink()
        file.symlink_to("/dev/full")
        for step in (3, 4):
            followed.write(record(step, 0.5))
        followed.ended(0)

    notes, _ = live(folder, TrackingSettings(trackers=["tensorboard"]), range(3), end=fill)
    assert len(notes) == 1, notes
    assert "OSError: [Errno 28] No space left on device" in notes[0]
    assert capfd.readouterr().err == ""


def test_tensorboard_knows_hyper_parameters_and_how_the_run_ended(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.plugins.hparams import api_pb2
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    folder = tmp_path / "boards"
    two_lives(tmp_path / "run", TrackingSettings(trackers=["tensorboard"], tensorboard={"dir": str(folder)}))
    found: dict[str, list[Any]] = {}
    for file in sorted((folder / "run").iterdir()):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.tag.startswith("_hparams_"):
                    data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                    found.setdefault(value.tag, []).append(data)
    begun = found["_hparams_/session_start_info"][0].session_start_info.hparams
    assert begun["trainer.lr"].number_value == 1e-06
    assert begun["trainer.save_in_background"].bool_value is True
    assert begun["trainer.mini_batch_size"].string_value == "null"
    ends = [data.session_end_info.status for data in found["_hparams_/session_end_info"]]
    assert ends == [api_pb2.STATUS_FAILURE, api_pb2.STATUS_SUCCESS]


def test_wandb_offline_is_one_run_with_each_step_once(tmp_path: Path) -> None:
    settings = TrackingSettings(trackers=["wandb"], wandb={"mode": "offline", "project": "mine", "tags": ["a"]})
    two_lives(tmp_path / "run", settings)
    lives = [list(wandb_files.records(file)) for file in wandb_files.files(tmp_path / "run")]
    runs = [record.run for records in lives for record in records if record.WhichOneof("record_type") == "run"]
    assert len(lives) == 2
    assert len({run.run_id for run in runs}) == 1
    assert {(run.display_name, run.project, tuple(run.tags)) for run in runs} == {("run", "mine", ("a",))}
    config = {wandb_files.name(item): item.value_json for item in runs[0].config.update}
    assert float(config["trainer.lr"]) == 1e-06
    assert config["origin/trainer.lr"] == '"RLCTL_TRAINER__LR"'
    scores = []
    for entry in (entry for entries in lives for entry in entries):
        if entry.WhichOneof("record_type") == "history":
            row = {wandb_files.name(item): json.loads(item.value_json) for item in entry.history.item}
            scores.append((row["_step"], row["score/mean"]))
            assert {key for key in row if not key.startswith("_")} == {
                "score/mean", "training/global_step", "val-core/gsm8k/acc/mean@8"
            }  # fmt: skip
    assert scores == SEEN_ONCE
    codes = [record.exit.exit_code for records in lives for record in records if record.HasField("exit")]
    assert codes == [1, 0]
    assert [any(record.HasField("preempting") for record in records) for records in lives] == [True, False]


def test_what_wandb_lost_when_it_was_killed_is_sent_again(tmp_path: Path) -> None:
    """Its own process writes late: a file that ends before the last steps that it was given, within a record."""
    settings = TrackingSettings(trackers=["wandb"], wandb={"mode": "offline"})
    live(tmp_path / "run", settings, range(5))
    (file,) = wandb_files.files(tmp_path / "run")
    whole = file.read_bytes()
    assert wandb_files.steps(file) == [0, 1, 2, 3, 4]
    while wandb_files.steps(file) != [0, 1]:
        whole = whole[:-7]
        file.write_bytes(whole)
    live(tmp_path / "run", settings, range(3, 6), after=2)
    (second,) = (path for path in (tmp_path / "run/wandb").glob("offline-run-*/*.wandb") if path != file)
    wandb_files.wait(second)
    assert wandb_files.steps(second) == [2, 3, 4, 5]


def test_a_life_of_wandb_that_began_in_the_same_second_as_another_is_read_too(tmp_path: Path) -> None:
    from rlctl.trackers.wandb import last_written

    live(tmp_path / "run", TrackingSettings(trackers=["wandb"], wandb={"mode": "offline"}), range(3), score=0.5)
    (folder,) = (tmp_path / "run/wandb").glob("offline-run-*")
    run_id = folder.name.rsplit("-", 1)[-1]
    assert last_written(tmp_path / "run/wandb", run_id) == 2
    folder.rename(folder.with_name(f"{folder.name}-1"))
    assert last_written(tmp_path / "run/wandb", run_id) == 2


def test_wandb_is_told_nothing_of_the_command_line(tmp_path: Path) -> None:
    """It may hold secrets; W&B's own metadata would have it, the folder, and the code's repository."""
    live(tmp_path / "run", TrackingSettings(trackers=["wandb"], wandb={"mode": "offline"}), [0])
    wandb_files.files(tmp_path / "run")
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert b"score/mean" in written
    assert b"s3cr3t-typed" not in written
    assert not list((tmp_path / "run/wandb").rglob("wandb-metadata.json"))


def test_mlflow_is_one_run_with_each_step_once(tmp_path: Path) -> None:
    two_lives(tmp_path / "run", TrackingSettings(trackers=["mlflow"], mlflow={"experiment": "mine"}))
    store = sqlite3.connect(tmp_path / "mlflow.db")
    scores = store.execute("SELECT step, value FROM metrics WHERE key = 'score/mean' ORDER BY step").fetchall()
    assert scores == SEEN_ONCE
    names = {key for (key,) in store.execute("SELECT key FROM metrics")}
    assert names == {"score/mean", "training/global_step", "val-core/gsm8k/acc/mean_at_8"}
    assert store.execute("SELECT name, status FROM runs").fetchall() == [("run", "FINISHED")]
    assert store.execute("SELECT name FROM experiments WHERE name = 'mine'").fetchall()
    parameters = dict(store.execute("SELECT key, value FROM params").fetchall())
    assert parameters["trainer.lr"] == "1e-06"
    assert parameters["origin/trainer.lr"] == "RLCTL_TRAINER__LR"
    assert parameters["remote_backend.x.address"] == "https://***@host/path"
    assert "s3cr3t" not in (tmp_path / "mlflow.db").read_bytes().decode("latin-1")


def test_trackio_is_one_run_with_each_step_once_and_prints_nothing_on_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for module in [name for name in sys.modules if name.partition(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, module)  # it reads TRACKIO_DIR as it is imported
    two_lives(tmp_path / "run", TrackingSettings(trackers=["trackio"], trackio={"project": "mine"}))
    assert capsys.readouterr().out == ""
    store = sqlite3.connect(tmp_path / "trackio/mine.db")
    rows = store.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step").fetchall()
    assert [(step, json.loads(metrics)["score/mean"]) for _, step, metrics in rows] == SEEN_ONCE
    assert len({name for name, _, _ in rows}) == 1
    assert rows[0][0].startswith("run-")
    (configured,) = store.execute("SELECT config FROM configs").fetchone()
    assert json.loads(configured)["trainer.lr"] == 1e-06


def test_several_at_once_and_one_that_fails_takes_no_other_with_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/tensorboard").write_text("a file where a folder should be")
    settings = TrackingSettings(trackers=["tensorboard", "wandb"], wandb={"mode": "offline"})
    notes, _ = live(tmp_path / "run", settings, range(3))
    assert len(notes) == 1
    assert notes[0].startswith("tracker tensorboard is switched off, and the run goes on: ")
    (file,) = wandb_files.files(tmp_path / "run")
    assert wandb_files.steps(file) == [0, 1, 2]
