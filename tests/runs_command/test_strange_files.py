"""A run's folder in which something else than a file has a file's name: told, never waited for."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rlctl import regular
from rlctl.errors import ConfigError
from rlctl.logs import Log
from rlctl.runfiles import RunFiles
from rlctl.types import BackendInfo
from tests.command_line import rlctl
from tests.runs_command.folders import step, write_run

IN_A_RUN = ("machine.json", "ended.json", "resumes.jsonl", "samples.jsonl", "lock")


def a_socket(path: Path) -> None:
    # From within its folder: a socket's path may have 107 bytes.
    with socket.socket(socket.AF_UNIX) as one, contextlib.chdir(path.parent):
        one.bind(path.name)  # its name is left behind


KINDS: dict[str, Callable[[Path], None]] = {
    "a named pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": a_socket,
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    KINDS[kind](tmp_path / "x")
    with pytest.raises(regular.NotAFile, match=f"it is {kind}, not a file"):
        regular.read_bytes(tmp_path / "x")


def test_what_becomes_a_pipe_before_it_is_opened_does_not_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    descriptor = regular.without_waiting(str(tmp_path / "x"), os.O_RDONLY)
    os.close(descriptor)
    with pytest.raises(OSError, match="No such device or address"):
        regular.without_waiting(str(tmp_path / "x"), os.O_WRONLY)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["metrics.jsonl", "config.resolved.json"])
def test_every_command_that_looks_at_runs_tells_of_it_and_goes_on(tmp_path: Path, kind: str, name: str) -> None:
    broken = write_run(tmp_path / "runs/broken", [step(1, score__mean=0.5)], total=1)
    write_run(tmp_path / "runs/good", [step(1, score__mean=0.5)], total=1)
    for one in (*IN_A_RUN, name):
        (broken / one).unlink(missing_ok=True)
        KINDS[kind](broken / one)
    (broken / "checkpoints/step_000001").mkdir(parents=True)
    KINDS[kind](broken / "checkpoints/step_000001/manifest.json")
    ended = {
        words: rlctl("runs", *words.split(), cwd=tmp_path)
        for words in ("list", "show broken", "tail broken", "export broken", "compare good broken", "samples broken")
    }
    listed, shown, sampled = ended["list"], ended["show broken"], ended["samples broken"]
    assert listed.stdout.count("\n") == 3, listed
    for one in ("machine.json", "ended.json", "resumes.jsonl", name):
        assert f"{one} cannot be read: it is {kind}, not a file" in shown.stdout
    for words in ("tail broken", "export broken"):
        assert f"{name} cannot be read: it is {kind}, not a file" in ended[words].stderr
    assert f"samples.jsonl cannot be read: it is {kind}, not a file" in sampled.stderr
    assert all("Traceback" not in process.stderr for process in ended.values())
    assert all(process.returncode == 0 for words, process in ended.items() if "samples" not in words)


@pytest.mark.parametrize("kind", ["a named pipe", "a device", "a socket"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.jsonl"])
def test_a_run_does_not_begin_where_its_logs_are_no_files(tmp_path: Path, kind: str, name: str) -> None:
    KINDS[kind](tmp_path / name)
    with pytest.raises(ConfigError, match=f"{name}: it is {kind}, not a file"):
        RunFiles(tmp_path, config={}, after=-1)


def test_a_log_that_becomes_a_pipe_keeps_its_lines_in_memory(tmp_path: Path) -> None:
    notes: list[str] = []
    log = Log(tmp_path / "log.jsonl", step_key="step", note=notes.append)
    os.mkfifo(log.path)
    log.write({"step": 1})
    assert len(notes) == 1
    log.path.unlink()
    log.write({"step": 2})
    assert log.path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_the_machine_takes_the_place_of_what_had_its_name(tmp_path: Path) -> None:
    files = RunFiles(tmp_path, config={})
    os.mkfifo(tmp_path / "machine.json")
    files.write_machine(
        BackendInfo(
            device="cpu",
            num_devices=1,
            dtype="float32",
            peak_flops=None,
            peak_source="",
            vocab_size=8,
            num_parameters=1,
        )
    )
    assert '"cpu"' in (tmp_path / "machine.json").read_text()
