"""The file of a baseline: whole or refused, with what is wrong and where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlctl.baselines import file
from rlctl.errors import ConfigError
from tests.baselines.synthetic import baseline


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "base.json"
    file.write(path, baseline(runs=2, steps=12))
    return path


def test_what_is_written_is_read(written: Path) -> None:
    assert file.read(written) == baseline(runs=2, steps=12)
    assert [path.name for path in written.parent.iterdir()] == ["base.json"]


def test_bands_hold_what_the_steps_after_the_warm_up_lie_in(written: Path) -> None:
    # Losses are 0.01 x step: steps 3 to 12 are judged.
    bands = json.loads(written.read_text())["bands"]
    assert bands["loss"] == {"least": 0.03, "median": pytest.approx(0.075), "greatest": 0.12}


def changed(path: Path, change: Callable[[Any], Any]) -> None:
    tree = json.loads(path.read_text())
    path.write_text(json.dumps(change(tree) or tree))


def drop(*keys: Any) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        del tree[keys[-1]]

    return change


def put(value: Any, *keys: Any) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        tree[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (drop("rlctl_baseline"), "it has no `rlctl_baseline`"),
        (put(9, "rlctl_baseline"), "is of format 9; this rlctl reads format 3"),
        (put("1", "rlctl_baseline"), "is of format '1'"),
        (drop("key"), "its `key` is missing"),
        (put([], "recipe"), "its `recipe` is not what it should be"),
        (put([], "runs"), "its `runs` is not what it should be"),
        (drop("runs", 1), "it holds 1 runs where at least 2 are needed"),
        (put({}, "runs", 1), "its run 2 has no steps"),
        (put(3, "runs", 0), "its run 1 has no steps"),
        (drop("runs", 1, "steps", 4, "loss"), "step 5 of run 2 lacks a figure or has one too many"),
        (put("fast", "runs", 0, "steps", 2, "mfu"), "mfu of step 3 of run 1 is 'fast'"),
        (put(True, "runs", 0, "steps", 2, "loss"), "loss of step 3 of run 1 is 'True'"),
        (put({"update": None}, "runs", 0, "steps", 2, "seconds"), "seconds of step 3 of run 1"),
        (put({"update": [0.0]}, "runs", 0, "steps", 2, "reference"), "reference of step 3 of run 1"),
        (lambda tree: [tree], "it is a list"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(written: Path, change: Callable[[Any], Any], told: str) -> None:
    changed(written, change)
    with pytest.raises(ConfigError) as error:
        file.read(written)
    assert told in error.value.message
    assert str(written) in error.value.message
    assert error.value.hint


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b"NaN"])
def test_what_is_not_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "base.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is no baseline of rlctl, or is damaged"):
        file.read(path)


def test_a_file_that_was_cut_short_anywhere_is_refused(written: Path) -> None:
    content = written.read_bytes()
    for share in (0.1, 0.5, 0.9, 0.999):
        written.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(ConfigError, match="is damaged"):
            file.read(written)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        file.read(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="Is a directory"):
        file.read(tmp_path)


def test_nothing_is_written_over(written: Path) -> None:
    with pytest.raises(ConfigError, match="a file of that name is there already"):
        file.must_be_writable(written)
    with pytest.raises(ConfigError, match="a folder of that name is there already"):
        file.must_be_writable(written.parent)


def test_a_place_that_cannot_be_written_is_told_before_the_run(written: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: "):
        file.must_be_writable(written / "below.json")
    with pytest.raises(ConfigError, match="cannot be written: File name too long"):
        file.must_be_writable(written.parent / ("x" * 300))


def test_a_new_place_is_left_as_it_was(tmp_path: Path) -> None:
    file.must_be_writable(tmp_path / "new" / "base.json")
    assert list((tmp_path / "new").iterdir()) == []
