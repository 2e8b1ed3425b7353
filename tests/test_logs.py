"""A log holds whole lines, each step once, and what a full disk does not take is not lost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlctl.logs import Log


def log(path: Path, notes: list[str]) -> Log:
    return Log(path, step_key="step", note=notes.append)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_lines_that_a_full_disk_does_not_take_are_written_later(tmp_path: Path) -> None:
    notes: list[str] = []
    path = tmp_path / "log.jsonl"
    path.symlink_to("/dev/full")
    full = log(path, notes)
    full.write({"step": 1})
    full.write({"step": 2})
    assert len(notes) == 1
    assert "its lines wait in memory" in notes[0]
    with pytest.raises(OSError, match=r".*"):
        full.flush()
    path.unlink()
    full.write({"step": 3})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('{"step": 1}\n{"step": 2}\n{"step": 3}\n', '{"step": 1}\n{"step": 2}\n'),
        ('{"step": 1}\n{"step": 2}\n{"step": 3, "sco', '{"step": 1}\n{"step": 2}\n'),
        ('{"step": 1}\n{"step": 2}', '{"step": 1}\n'),
        ('{"step": 1}\n\x00\x00\x00\x00', '{"step": 1}\n'),
        ('{"step": 1}\n[2]\n{"step": 2}\n', '{"step": 1}\n'),
        ('{"step": 1}\n{"other": 2}\n', '{"step": 1}\n'),
        ("", ""),
    ],
)
def test_what_no_checkpoint_holds_is_cut_off(tmp_path: Path, text: str, kept: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    records = log(path, []).cut_after(2)
    assert path.read_text() == kept
    assert [record["step"] for record in records] == [1, 2][: kept.count("\n")]
