"""Following a growing file of metrics: new steps once each, lines that a resume cuts off, and the end of the run."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

from rlctl import runlock
from rlctl.runs.tailing import Follower, follow, words
from tests.runs_command.folders import step, write_lines, write_run


def append(path: Path, *records: object) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def steps(records: list[dict[str, object]] | object) -> list[object]:
    assert isinstance(records, list)
    return [record["training/global_step"] for record in records]


def test_each_line_comes_once_and_a_half_one_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = Follower(path)
    assert follower.news() == (None, [])
    append(path, step(1), step(2))
    assert steps(follower.news()[1]) == [1, 2]
    with path.open("a") as file:
        file.write('{"training/global_step": 3')
    assert follower.news() == (None, [])
    with path.open("a") as file:
        file.write("}\nnot json\n")
    assert steps(follower.news()[1]) == [3]
    assert follower.news() == (None, [])


def test_a_cut_is_told_and_the_steps_after_it_come_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = Follower(path)
    write_lines(path, [step(n, score__mean=0.1) for n in (1, 2, 3)])
    follower.news()
    write_lines(path, [step(1, score__mean=0.1)])
    assert follower.news() == (1, [])
    append(path, step(2, score__mean=0.2))
    assert steps(follower.news()[1]) == [2]


def test_a_cut_that_was_written_over_meanwhile_is_seen_too(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = Follower(path)
    write_lines(path, [step(n, score__mean=0.1) for n in (1, 2, 3)])
    follower.news()
    write_lines(path, [step(1, score__mean=0.1), *(step(n, score__mean=0.2) for n in (2, 3, 4, 5))])
    cut, records = follower.news()
    assert cut == 1
    assert steps(records) == [2, 3, 4, 5]


def test_a_resume_with_the_same_numbers_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = Follower(path)
    write_lines(path, [step(n) for n in (1, 2)])
    follower.news()
    write_lines(path, [step(n) for n in (1, 2, 3)])
    cut, records = follower.news()
    assert (cut, steps(records)) == (None, [3])


def test_following_ends_with_the_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [step(1)], total=3)
    path = folder / "metrics.jsonl"
    held, done = threading.Event(), threading.Event()

    def train() -> None:
        with runlock.held(folder, note=lambda text: None):
            held.set()
            for number in (2, 3):
                append(path, step(number))
                time.sleep(0.05)
            done.wait(10)
        (folder / "ended.json").write_text('{"exit_code": 0}')

    thread = threading.Thread(target=train)
    thread.start()
    held.wait(10)
    told = []
    for each in follow(folder, last=9, wait_s=5, lines=lambda r: [f"step {r['training/global_step']}"], forever=True):
        told.append(each.text)
        if each.text == "step 3":
            done.set()
    thread.join()
    assert told == ["step 1", "step 2", "step 3", "a finished after step 3"]


def test_following_ends_when_the_folder_is_removed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [step(1)], total=3)
    told = follow(folder, last=9, wait_s=60, lines=lambda r: ["a step"], forever=True)
    assert next(told).text == "a step"
    shutil.rmtree(folder)
    assert [each.text for each in told] == ["a: its folder is gone"]


def test_without_follow_only_the_last_steps_are_printed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [step(n) for n in range(1, 6)])

    def lines(count: int) -> list[str]:
        return [
            told.text
            for told in follow(
                folder, last=count, wait_s=0, lines=lambda r: [str(r["training/global_step"])], forever=False
            )
        ]

    assert (lines(2), lines(0)) == (["4", "5"], [])


def test_a_step_reads_as_train_prints_it_and_damaged_values_are_not_available() -> None:
    record = step(3, score__mean="x", actor__loss=None, timing_s__step=2.0)
    record["val-core/a\x1b[31m/acc/mean@1"] = 0.5
    first, second = words(record, total=None)
    assert first.startswith("step 3  score n/a  signal n/a  loss n/a")
    assert first.endswith("2.00 s")
    assert second == "step 3: val-core/a\\x1b[31m/acc/mean@1 0.500"
