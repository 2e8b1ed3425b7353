"""Every wait ends, and says who was waited for."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rlctl.backends.ray.waiting import Died, Patience, TimedOut, answers
from rlctl.errors import BackendError


async def after(seconds: float, value: int = 0, error: Exception | None = None) -> int:
    await asyncio.sleep(seconds)
    if error is not None:
        raise error
    return value


def test_answers_come_by_name() -> None:
    got = asyncio.run(answers({"a": after(0, 1), "b": after(0.01, 2)}, what="test", patience=Patience(5, 5)))
    assert got == {"a": 1, "b": 2}


def test_nobody_asked_is_answered_at_once() -> None:
    assert asyncio.run(answers({}, what="test", patience=Patience(5, 5))) == {}


def test_a_deadline_names_who_is_missing() -> None:
    with pytest.raises(TimedOut, match=r"load: no answer from rank 1 after 0\.05 s"):
        asyncio.run(answers({"rank 0": after(0), "rank 1": after(9)}, what="load", patience=Patience(0.05, 5)))


def test_a_stall_is_told_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="rlctl.ray")
    asyncio.run(answers({"sampler 0": after(0.12)}, what="sample", patience=Patience(5, 0.05)))
    assert "sample: waiting for sampler 0 since 0 s" in caplog.text


def test_a_death_is_told_rather_than_what_others_say_of_it() -> None:
    asked = {
        "rank 0": after(0, error=BackendError("connection closed by peer")),
        "rank 1": after(0.02, error=Died("rank 1 died")),
    }
    with pytest.raises(Died, match="rank 1 died"):
        asyncio.run(answers(asked, what="update", patience=Patience(5, 5)))


def test_no_task_is_left_after_an_error() -> None:
    async def work() -> int:
        with pytest.raises(BackendError):
            await answers({"a": after(0, error=BackendError("x"))}, what="test", patience=Patience(5, 5))
        return len(asyncio.all_tasks())

    assert asyncio.run(work()) == 1
