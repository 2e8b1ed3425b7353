"""Every wait has a name and a deadline: who is waited for, since when, and an error when the time is up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from rlctl.errors import BackendError

T = TypeVar("T")

logger = logging.getLogger("rlctl.ray")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, and after how many seconds to say who is waited for."""

    timeout_s: float
    notice_s: float


class TimedOut(BackendError):
    """Somebody did not answer in time."""


class Died(BackendError):
    """Somebody is not there any more."""

    def __init__(self, message: str, *, hint: str = "", who: str = "somebody") -> None:
        super().__init__(message, hint=hint)
        self.who = who


GRACE_S = 5.0
"""Seconds after a first error in which others may still tell its cause."""


async def answers(asked: Mapping[str, Awaitable[T]], *, what: str, patience: Patience) -> dict[str, T]:
    """The answer of each, by name. Raises the first error, or TimedOut naming who is missing; the rest is cancelled."""
    tasks = {name: asyncio.ensure_future(_plain(awaitable)) for name, awaitable in asked.items()}
    try:
        await _all_done(tasks, what=what, patience=patience)
        return {name: task.result() for name, task in tasks.items()}
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


async def _plain(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _all_done(tasks: Mapping[str, asyncio.Task[T]], *, what: str, patience: Patience) -> None:
    start = time.monotonic()
    pending = set(tasks.values())
    while pending:
        left = patience.timeout_s - (time.monotonic() - start)
        if left <= 0:
            raise TimedOut(
                f"{what}: no answer from {missing(tasks)} after {patience.timeout_s:g} s.",
                hint="remote_backend.ray.request_timeout_s and start_timeout_s are the limits.",
            )
        done, pending = await asyncio.wait(
            pending, timeout=min(left, patience.notice_s), return_when=asyncio.FIRST_EXCEPTION
        )
        if any(task.exception() for task in done):
            raise await _cause(tasks)
        if pending and not done:
            logger.warning("%s: waiting for %s since %.0f s", what, missing(tasks), time.monotonic() - start)


async def _cause(tasks: Mapping[str, asyncio.Task[T]]) -> BaseException:
    """The error to raise: when one actor dies, those that wait for it in a collective complain sooner, or die too."""
    done, _ = await asyncio.wait(tasks.values(), timeout=GRACE_S)
    errors = [error for task in done if (error := task.exception()) is not None]
    dead = [error for error in errors if isinstance(error, Died)]
    if len(dead) > 1:
        names = " and ".join(error.who for error in dead)
        return Died(f"{names} died, one with the other: {dead[0].message}", hint=dead[0].hint)
    return dead[0] if dead else errors[0]


def missing(tasks: Mapping[str, asyncio.Task[T]]) -> str:
    """Who has not answered: at most four names."""
    names = [name for name, task in tasks.items() if not task.done()]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
