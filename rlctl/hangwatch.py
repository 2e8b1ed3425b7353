"""Every wait of the driver has a name and a deadline; one that takes long is told, with the stacks of all threads.

A thread watches, so that it also sees an event loop that has stopped turning: then the stack of whatever holds it up is
what a person needs. At the deadline the wait ends in Stalled; since nothing can end a thread that hangs, the process
ends itself a little later.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

from rlctl import regular
from rlctl.errors import RlctlError, Stalled

T = TypeVar("T")

LAST_WORDS_S = 20.0
"""Seconds between a wait's deadline and the end of the process by force: for closing and saving."""

LOOP = "the driver's own loop"

Stacks = Callable[[], Coroutine[Any, Any, Mapping[str, str]]]
"""What other processes are doing, by name."""


@dataclass
class _Wait:
    name: str
    since: float
    told: int = 0
    """How often; each time after twice as long."""


class HangWatch:
    """The waits of one run. `file` takes the stacks, stderr where there is none; times are in seconds."""

    def __init__(
        self,
        *,
        notice_s: float,
        timeout_s: float,
        note: Callable[[str], None],
        file: Path | None,
        stacks: Stacks | None = None,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self.notice_s, self.timeout_s, self.note, self.file = notice_s, timeout_s, note, file
        self.stacks, self.end = stacks, end
        self._waits: dict[int, _Wait] = {}
        self._loop_turned = time.monotonic()
        self._loop_told = 0
        self._over = threading.Event()

    async def until(self, name: str, awaitable: Awaitable[T]) -> T:
        """What the awaitable gives. Raises Stalled at the deadline, and cancels it."""
        wait = _Wait(name, time.monotonic())
        self._waits[id(wait)] = wait
        try:
            async with asyncio.timeout(self.timeout_s) as deadline:
                return await awaitable
        except TimeoutError:
            if not deadline.expired():
                raise
            raise self._stalled(wait) from None
        finally:
            del self._waits[id(wait)]

    def waits(self) -> list[tuple[str, float]]:
        """What is waited for now, and since when on the monotonic clock; may be asked from any thread."""
        return [(wait.name, wait.since) for wait in list(self._waits.values())]

    def _stalled(self, wait: _Wait) -> Stalled:
        seconds = time.monotonic() - wait.since
        self._tell(f"{wait.name}: no end after {seconds:.0f} s")
        last_words = threading.Timer(LAST_WORDS_S, self.end, [Stalled.exit_code])
        last_words.daemon = True
        last_words.start()
        return Stalled(
            f"{wait.name} has not ended after {seconds:.0f} s.",
            hint=f"run.stall_timeout_s is the limit; {self._where()} shows where it hangs; `rlctl resume` goes on.",
        )

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch from a thread while the block runs; call it inside the loop that is to be watched."""
        loop = asyncio.get_running_loop()
        self._loop_turned = time.monotonic()
        thread = threading.Thread(target=self._watch, args=(loop,), name="rlctl-hangwatch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        pause = min(1.0, self.notice_s / 4)
        while not self._over.wait(pause):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._turn)
            now = time.monotonic()
            for wait in list(self._waits.values()):
                if now - wait.since > self.notice_s * 2**wait.told:
                    wait.told += 1
                    self._tell(f"waiting for {wait.name} since {now - wait.since:.0f} s", loop)
            self._look_at_loop(now - self._loop_turned)

    def _turn(self) -> None:
        self._loop_turned = time.monotonic()
        self._loop_told = 0

    def _look_at_loop(self, silent_s: float) -> None:
        if silent_s > self.notice_s * 2**self._loop_told:
            self._loop_told += 1
            self._tell(f"waiting for {LOOP} since {silent_s:.0f} s: something in it blocks")
        if silent_s > self.timeout_s:
            self.end(Stalled.exit_code)

    def _tell(self, text: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.note(f"{text}; the stacks of all threads are in {self._where()}")
        others = self._stacks_of_others(loop) if loop is not None and self.stacks is not None else {}
        with contextlib.suppress(OSError), self._stream() as stream:  # a full disk must not end the watch
            stream.write(f"== {time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            stream.flush()
            faulthandler.dump_traceback(file=stream, all_threads=True)
            for name, frames in others.items():
                stream.write(f"== {name}\n{frames}\n")

    @contextlib.contextmanager
    def _stream(self) -> Iterator[TextIO]:
        if self.file is None:
            yield sys.stderr
            return
        with open(self.file, "a", encoding="utf-8", opener=regular.without_waiting) as stream:
            yield stream

    def _stacks_of_others(self, loop: asyncio.AbstractEventLoop) -> Mapping[str, str]:
        assert self.stacks is not None
        asked = asyncio.run_coroutine_threadsafe(self.stacks(), loop)
        try:
            return asked.result(timeout=10)
        except (NoAnswer, RlctlError) as error:
            asked.cancel()
            return {"the backend's other processes": f"no answer: {type(error).__name__} {error}"}

    def _where(self) -> str:
        return str(self.file) if self.file is not None else "this output"
