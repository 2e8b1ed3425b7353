"""Runs of other people, whose folders or files may not be read."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlctl.cli import app
from rlctl.errors import ConfigError
from tests.runs_command.folders import step, write_run


@contextlib.contextmanager
def somebody_else() -> Iterator[None]:
    """Root may read everything, so for a moment this process is nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three runs in ./runs: `open`; `half`, whose settings and checkpoints are closed; `shut`, all of it."""
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    for name in ("open", "half", "shut"):
        write_run(Path("runs", name), [step(1, score__mean=0.5)], settings={"data": {"path": "x"}}, total=1)
        Path("runs", name, "checkpoints").mkdir()
    # What a command loads, it loads before this process is nobody, who may not see every package.
    for command in (["list"], ["show", "open"], ["compare", "open", "half"]):
        invoked(*command)
    closed = [Path("runs/half/config.resolved.json"), Path("runs/half/checkpoints"), Path("runs/shut")]
    for path in closed:
        path.chmod(0)
    yield
    for path in closed:
        path.chmod(0o755)


def invoked(*arguments: str) -> str:
    return CliRunner().invoke(app, ["runs", *arguments], catch_exceptions=False).output


def test_one_closed_run_does_not_hide_the_others() -> None:
    with somebody_else():
        told = invoked("list")
        shown = invoked("show", "latest")
        with pytest.raises(ConfigError, match="runs/shut cannot be read: Permission denied"):
            invoked("show", "shut")
    assert "note: runs/shut cannot be read and is left out: Permission denied" in told
    assert "\nopen " in told
    assert "\nhalf " in told
    assert "state " in shown


def test_closed_checkpoints_and_settings_are_told() -> None:
    with somebody_else():
        told = invoked("show", "half")
        record = json.loads(invoked("show", "half", "--format", "json"))
    assert "checkpoints  runs/half/checkpoints cannot be read: Permission denied" in told
    assert "note: runs/half/config.resolved.json cannot be read: Permission denied" in told
    assert record["damaged_checkpoints"] == ["runs/half/checkpoints cannot be read: Permission denied"]


def test_a_run_whose_settings_are_not_known_is_not_said_to_have_other_ones() -> None:
    with somebody_else():
        told = invoked("compare", "open", "half")
    assert "the settings of half are not known: nobody can say whether open and half are comparable" in told
    assert "other data or rewards" not in told
    assert "data.path" not in told
