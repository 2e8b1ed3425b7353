"""A wait that takes long is told by name with all stacks; one past its deadline ends; a blocked loop is seen too."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlctl.errors import Stalled
from rlctl.hangwatch import HangWatch


def watch(folder: Path, notes: list[str], **changes: Any) -> HangWatch:
    file = folder / "stacks.txt"
    return HangWatch(**{"notice_s": 0.1, "timeout_s": 30.0, "note": notes.append, "file": file, **changes})


def test_a_long_wait_is_told_with_its_name_and_the_stacks(tmp_path: Path) -> None:
    notes: list[str] = []

    async def work() -> str:
        watching = watch(tmp_path, notes)
        with watching.watching():
            return await watching.until("32 completions (generate)", asyncio.sleep(0.8, "done"))

    assert asyncio.run(work()) == "done"
    assert re.match(r"waiting for 32 completions \(generate\) since \d+ s; the stacks of all threads are in ", notes[0])
    # After 0.1, 0.2 and 0.4 seconds, and not at every look.
    assert 2 <= len(notes) <= 3
    stacks = (tmp_path / "stacks.txt").read_text()
    assert "waiting for 32 completions (generate)" in stacks
    assert stacks.count("Thread 0x") >= 2
    assert "test_hangwatch.py" in stacks


def test_a_short_wait_is_not_told(tmp_path: Path) -> None:
    notes: list[str] = []

    async def work() -> None:
        watching = watch(tmp_path, notes, notice_s=5.0)
        with watching.watching():
            await watching.until("a nap", asyncio.sleep(0.05))

    asyncio.run(work())
    assert notes == []
    assert not (tmp_path / "stacks.txt").exists()


def test_a_wait_past_its_deadline_ends_in_an_error_that_names_it(tmp_path: Path) -> None:
    notes: list[str] = []
    cancelled = []

    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def work() -> None:
        watching = watch(tmp_path, notes, notice_s=20.0, timeout_s=0.3, end=lambda code: None)
        with watching.watching():
            await watching.until("the optimizer (optim_step)", hang())

    with pytest.raises(Stalled, match=r"the optimizer \(optim_step\) has not ended after 0 s") as caught:
        asyncio.run(work())
    assert caught.value.exit_code == 4
    assert cancelled == [True]
    assert "test_hangwatch.py" in (tmp_path / "stacks.txt").read_text()


def test_a_time_out_of_the_work_itself_is_not_a_stall(tmp_path: Path) -> None:
    async def work() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        asyncio.run(watch(tmp_path, []).until("it", work()))


def test_a_loop_that_is_blocked_is_told_and_ended(tmp_path: Path) -> None:
    notes: list[str] = []
    codes: list[int] = []

    async def work() -> None:
        watching = watch(tmp_path, notes, notice_s=0.1, timeout_s=0.5, end=codes.append)
        with watching.watching():
            time.sleep(0.9)  # must not be done, and is found

    asyncio.run(work())
    assert any("waiting for the driver's own loop" in note for note in notes)
    assert codes[:1] == [4]
    assert "in work" in (tmp_path / "stacks.txt").read_text()


def test_other_processes_say_what_they_do(tmp_path: Path) -> None:
    async def stacks() -> Mapping[str, str]:
        return {"trainer rank 0": "in all_reduce"}

    async def work() -> None:
        watching = watch(tmp_path, [], stacks=stacks)
        with watching.watching():
            await watching.until("a gradient", asyncio.sleep(0.5))

    asyncio.run(work())
    assert "== trainer rank 0\nin all_reduce" in (tmp_path / "stacks.txt").read_text()
