"""How a run is asked to end or to save, and how long what is running may take after that.

    SIGINT, SIGTERM, SIGHUP   end: finish the step within a grace, or give it up; save; exit 130, 143, 129
    a second one              end at once
    SIGUSR1                   save soon and go on: what SLURM sends before it pre-empts (`--signal=USR1@120`)
    trainer.save_before       a limit on the wall clock: end and save before it, exit 75

SIGHUP stays ignored where it was when the process began (`nohup`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

OUT_OF_TIME = 75
"""Exit code of a run that a limit ended before it was complete: EX_TEMPFAIL of sysexits.h, "try again later"."""

POLL_S = 0.2
"""Seconds between two looks at the clock while a step runs; its end is seen at once."""

SHORTEST_RESERVE_S = 1.0
"""Least time left for saving before a limit."""


class GivenUp(Exception):
    """What was running has been cut off, since its time was over."""


@dataclass
class Stopping:
    """What a run was asked for, and until when."""

    grace_s: float
    limit: float | None = None
    """When the run must have ended, on the monotonic clock."""
    signal: int | None = None
    save_now: bool = False
    longest_step_s: float = 0.0
    longest_save_s: float = 0.0
    _asked_at: float | None = field(default=None, repr=False)
    _timed_out: bool = False

    def ask(self, number: int) -> None:
        """The run has had its first signal."""
        if number == signal.SIGUSR1:
            self.save_now = True
        else:
            self.signal = number
        self._asked_at = time.monotonic() if self._asked_at is None else self._asked_at

    def saved(self) -> None:
        """What SIGUSR1 asked for is done."""
        self.save_now = False
        self._asked_at = None if self.signal is None else self._asked_at

    @property
    def reserve_s(self) -> float:
        """Seconds to keep free for saving before the limit."""
        return max(SHORTEST_RESERVE_S, 2 * self.longest_save_s)

    @property
    def out_of_time(self) -> bool:
        """Whether the limit leaves no room for another step; once it does not, it stays so."""
        if self.limit is not None and time.monotonic() + 1.1 * self.longest_step_s + self.reserve_s > self.limit:
            self._timed_out = True
        return self._timed_out

    @property
    def must_end(self) -> bool:
        return self.signal is not None or self.out_of_time

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal is not None else OUT_OF_TIME

    @property
    def deadline(self) -> float | None:
        """When what is running must be over, on the monotonic clock."""
        times = [] if self._asked_at is None else [self._asked_at + self.grace_s]
        return min([*times, *([] if self.limit is None else [self.limit - self.reserve_s])], default=None)

    async def guard(self, work: Coroutine[Any, Any, T], *, give_up: Callable[[], bool] = lambda: True) -> T:
        """Do the work, and cut it off at the deadline if `give_up` agrees then. Raises GivenUp."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=POLL_S)
                if not task.done() and self.deadline is not None and time.monotonic() > self.deadline and give_up():
                    raise GivenUp
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and task.done():
                task.exception()  # asked for, so that asyncio does not complain of it a second time


@contextlib.contextmanager
def listening(stopping: Stopping, *, note: Callable[[str], None], leave: Callable[[], None]) -> Iterator[None]:
    """Hear the signals meant for the run; `leave` is called before a second one ends the process at once."""
    loop = asyncio.get_running_loop()

    def on(number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            detach_terminal()
        if number != signal.SIGUSR1 and stopping.signal is not None:
            leave()
            os._exit(128 + number)
        stopping.ask(number)
        note(f"{number.name}: {_promise(number, stopping)}")

    heard = [number for number in _SIGNALS if number != signal.SIGHUP or not _is_ignored(number)]
    try:
        for number in heard:
            loop.add_signal_handler(number, on, number)
    except (NotImplementedError, RuntimeError, ValueError):
        # Not the main thread, or a platform without it: whoever embeds the run handles signals.
        yield
        return
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def _promise(number: int, stopping: Stopping) -> str:
    within = f"finishing the step, within {stopping.grace_s:g} s"
    if number == signal.SIGUSR1:
        return f"{within}, saving, and going on"
    return f"{within}, and saving; once more ends at once"


def _is_ignored(number: signal.Signals) -> bool:
    handler: Callable[[int, FrameType | None], Any] | int | None = signal.getsignal(number)
    return handler == signal.SIG_IGN


def leave_soon(code: int, *, after_s: float = 5.0) -> None:
    """End the process in a while, whatever its threads are doing by then."""
    timer = threading.Timer(after_s, os._exit, [code])
    timer.daemon = True
    timer.start()


def detach_terminal() -> None:
    """Let what is written to a terminal that has gone go nowhere, in place of failing."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        if os.isatty(descriptor):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)


def limit_from(save_before_s: float | None) -> float | None:
    """The end of a wall-clock limit that began with this process, on the monotonic clock."""
    return None if save_before_s is None else time.monotonic() - _process_age_s() + save_before_s


def _process_age_s() -> float:
    """Seconds since this process began; 0 where the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return max(0.0, uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0
