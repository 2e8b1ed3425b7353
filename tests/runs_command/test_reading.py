"""Folders of runs in every state: going, ended, killed, half written, damaged. Nothing raises, everything is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlctl import runlock
from rlctl.errors import ConfigError
from rlctl.runs.finding import find_run, runs_in
from rlctl.runs.lines import number
from rlctl.runs.reading import read_run
from tests.runs_command.folders import step, write_run

SCORES = [step(1, score__mean=0.25), step(2, score__mean=0.5)]


def test_a_run_whose_lock_is_held_is_running_and_is_not_disturbed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", SCORES, total=2)
    code = "import sys,pathlib; from rlctl import runlock\nwith runlock.held(pathlib.Path(sys.argv[1]), note=print):\n"
    code += " print('held', flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert read_run(folder).state.kind == "running"
    assert runlock.is_held(folder) is True
    holder.stdin.write("\n")
    holder.stdin.close()
    assert holder.wait() == 0
    assert read_run(folder).state.kind == "finished"


def test_a_lock_that_this_process_holds_counts_and_stays_held(tmp_path: Path) -> None:
    with runlock.held(tmp_path, note=lambda text: None):
        assert read_run(tmp_path).state.kind == "running"
        with pytest.raises(ConfigError), runlock.held(tmp_path, note=lambda text: None):
            pass


def test_a_holder_that_is_gone_without_a_word_was_killed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", SCORES, total=9)
    (folder / "lock").write_text('{"pid": 7, "host": "h", "since": "2026-01-01 00:00:00"}')
    state = read_run(folder).state
    assert state.kind == "killed"
    assert "process 7 on h" in state.why


@pytest.mark.parametrize(
    ("ended", "kind", "why"),
    [
        ({"exit_code": 0, "why": ""}, "finished", ""),
        ({"exit_code": 143, "why": ""}, "interrupted", "by SIGTERM"),
        ({"exit_code": 130, "why": ""}, "interrupted", "by SIGINT"),
        ({"exit_code": 1, "why": "KeyboardInterrupt"}, "interrupted", "by SIGINT"),
        ({"exit_code": 75, "why": ""}, "interrupted", "trainer.save_before left no time for another step"),
        ({"exit_code": 4, "why": "NonFinite: weights"}, "failed", "NonFinite: weights"),
        ({"exit_code": 7}, "failed", "exit code 7"),
        ({"exit_code": None}, "failed", "exit code None"),
        ({}, "stopped", "nothing says how it ended"),
    ],
)
def test_how_a_run_ended(tmp_path: Path, ended: dict[str, object], kind: str, why: str) -> None:
    state = read_run(write_run(tmp_path / "a", SCORES, total=9, ended=ended)).state
    assert (state.kind, state.why) == (kind, why)


def test_a_run_of_an_earlier_version_is_finished_when_its_steps_are_there(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", SCORES, settings={"trainer": {"steps": 2}}))
    assert (run.total_steps, run.state.kind) == (2, "finished")


def test_damaged_lines_are_left_out_and_told_with_their_number(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", SCORES)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b"[1]\n\xff\xfe\n" + b"[" * 100_000 + b'\n{"a": 1}\n{"training/global_step": "3"}\n\n')
        file.write(b'{"training/global_step": 2, "score/mean": 0.75}\n{"training/global_step": 3, "sco')
    run = read_run(folder)
    assert [record["score/mean"] for record in run.steps] == [0.25, 0.75]
    told = "\n".join(run.complaints)
    for part in (
        "jsonl:3 is not",
        "jsonl:4 is not",
        "jsonl:5 is not",
        "2 lines name no step",
        "1 steps stand there twice",
    ):
        assert part in told
    assert "the last line was cut off" in told


def test_many_damaged_lines_are_counted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    (folder / "metrics.jsonl").write_bytes(b"x\n" * 1000)
    told = read_run(folder).complaints
    assert len(told) == 6
    assert told[-1].endswith("995 more lines are not JSON objects and are left out")


def test_files_that_are_no_files_are_told(tmp_path: Path) -> None:
    for name in ("config.resolved.json", "metrics.jsonl", "machine.json", "ended.json", "samples.jsonl"):
        (tmp_path / name).mkdir()
    told = "\n".join(read_run(tmp_path).complaints)
    for name in ("config.resolved.json", "metrics.jsonl", "machine.json", "ended.json"):
        assert f"{name} cannot be read" in told


def test_a_folder_with_nothing_but_a_lock_is_a_run_without_steps(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    run = read_run(tmp_path)
    assert (run.done, run.total_steps, run.seconds, run.task) == (0, None, 0.0, None)
    assert "config.resolved.json is missing" in run.complaints[0]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (1, 1.0),
        (0.5, 0.5),
        (True, None),
        ("1", None),
        (None, None),
        (float("nan"), None),
        (10**400, None),
        (1e308, None),
        (-1e100, -1e100),
        ([], None),
    ],
)
def test_what_a_number_is(value: object, found: float | None) -> None:
    assert number(value) == found


def test_runs_are_found_by_name_path_beginning_and_latest(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "base-1"), write_run(tmp_path / "other")
    for file in second.iterdir():
        file.touch()
    assert find_run("base-1", parent=tmp_path) == first
    assert find_run("ba", parent=tmp_path) == first
    assert find_run(str(second), parent=tmp_path / "elsewhere") == second
    assert find_run("latest", parent=tmp_path) == runs_in(tmp_path)[-1]


@pytest.mark.parametrize(
    ("name", "says"),
    [("", "no run ''"), ("bsae-1", "Did you mean base-1?"), ("base", "beginning of 2 runs: base-1, base-2"),
     ("x" * 5000, "no run"), ("a\0b", "no run"), ("..", "no run"), ("\udc80", "no run")],
)  # fmt: skip
def test_a_run_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path, name: str, says: str) -> None:
    for run in ("base-1", "base-2"):
        write_run(tmp_path / "runs" / run)
    with pytest.raises(ConfigError) as caught:
        find_run(name, parent=tmp_path / "runs")
    assert says in caught.value.message
    assert "base-1" in caught.value.message + caught.value.hint


def test_a_run_called_latest_goes_before_the_latest_run(tmp_path: Path) -> None:
    write_run(tmp_path / "latest")
    write_run(tmp_path / "newer")
    assert find_run("latest", parent=tmp_path).name == "latest"
