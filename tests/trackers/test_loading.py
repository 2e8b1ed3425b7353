"""What can be wrong with trackers is said before a run, all of it at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlctl import config
from rlctl.errors import ConfigError
from rlctl.settings.tracking import TrackingSettings
from rlctl.trackers.loading import load

FOREIGN = "tests.trackers.foreign"


def complaint(**settings: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(TrackingSettings.model_validate(settings), run_dir="runs")
    return f"{caught.value.message}\nhint: {caught.value.hint}"


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("tracking.trackers=wandbb", "names 'wandbb', which is neither one of jsonl, tensorboard, wandb, mlflow, "),
        ("tracking.trackers=wandbb", "trackio nor package.module:Class. Did you mean wandb?"),
        ('tracking.trackers=["wandb", "wandb"]', "names a tracker twice"),
        ("tracking.trackers=tensor board", "'tensor board'"),
        ("tracking.trackers=pkg.mod:", "'pkg.mod:'"),
        ("tracking.wandb.mode=offlin", "must be 'online', 'offline' or 'disabled'"),
        ("tracking.mlflow.uri=x", "tracking.mlflow.uri (from --set) is not a setting."),
        ("tracking.finish_timeout_s=0", "greater than 0"),
        ('tracking.options={"wandb": {}}', "whose settings are [tracking.wandb]"),
        ('tracking.options={"a.b:C": {}}', "which tracking.trackers does not name"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(assignment: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(assignments=[assignment], environ={})
    assert told in caught.value.message
    assert "tracking" in caught.value.message


def test_jsonl_may_be_named_and_is_always_there() -> None:
    settings = config.load(assignments=["tracking.trackers=jsonl,tensorboard"], environ={}).settings
    assert settings.tracking.trackers == ["tensorboard"]


def test_a_missing_package_names_its_extra_and_all_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "trackio", None)
    text = complaint(trackers=["mlflow", "trackio", f"{FOREIGN}:Missing"])
    assert "tracker mlflow needs 'mlflow', which is not installed.\n" in text
    assert "tracker trackio needs 'trackio', which is not installed.\n" in text
    assert f"'{FOREIGN}:Missing': {FOREIGN} has no 'Missing'" in text
    assert "pip install 'rlctl[mlflow]', or leave mlflow out of tracking.trackers." in text
    assert "pip install 'rlctl[trackio]'" in text


def test_a_package_that_is_broken_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "trackio").mkdir()
    (tmp_path / "trackio/__init__.py").write_text("raise OSError('libx.so: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    assert "importing trackio raised OSError: libx.so: cannot open shared object file" in complaint(
        trackers=["trackio"]
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no.such:Thing", "there is no module 'no'"),
        (f"{FOREIGN}.no:Thing", "there is no module 'tests.trackers.foreign.no'"),
        (f"{FOREIGN}:NoMethods", "has no method start and no log and no finish"),
        (f"{FOREIGN}:Broken", "cannot be made with no arguments: RuntimeError: no licence"),
        (f"{FOREIGN}:Recording", "cannot be made with no arguments: TypeError"),
        (f"{FOREIGN}:json", "cannot be made with no arguments: TypeError: 'module' object is not callable"),
    ],
)
def test_a_class_of_ones_own_that_cannot_be_used_is_told(name: str, told: str) -> None:
    assert told in complaint(trackers=[name])


def test_options_that_do_not_fit_are_told_with_their_table() -> None:
    name = f"{FOREIGN}:Recording"
    text = complaint(trackers=[name], options={name: {"path": "x", "colour": 1}})
    assert "cannot be made with path, colour: TypeError" in text
    assert f'[tracking.options."{name}"]' in text


def test_wandb_online_without_a_key_is_refused_before_it_could_ask(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    text = complaint(trackers=["wandb"])
    assert "tracker wandb is to be online, and has no API key." in text
    assert "tracking.wandb.mode=offline" in text
    (tmp_path / "netrc").write_text(f"machine api.wandb.ai login user password {'a' * 40}\n")
    assert list(load(TrackingSettings(trackers=["wandb"]), run_dir="runs")) == ["wandb"]


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    text = complaint(trackers=["mlflow"], mlflow={"tracking_uri": "https://me:s3cr3t@host"})
    assert "holds a password" in text
    assert "MLFLOW_TRACKING_PASSWORD" in text
    assert "s3cr3t" not in text


def test_no_tracker_is_imported_unless_it_is_named() -> None:
    code = """
import sys
from rlctl import config
from rlctl.trackers.loading import load
from rlctl.trackers import following
settings = config.load(environ={}).settings.tracking
assert load(settings, run_dir="runs") == {}
print(sorted({"tensorboard", "wandb", "mlflow", "trackio"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
