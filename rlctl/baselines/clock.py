"""Seconds that a piece of work took of its own: the wall's, less those its threads waited for a processor.

On a machine that others compute on, most of a step's wall time may be spent waiting for a core. Linux counts that by
thread: /proc/PID/task/TID/schedstat holds the nanoseconds a thread ran and those it stood in the run queue
(https://docs.kernel.org/scheduler/sched-stats.html). Elsewhere, own seconds are the wall's.

The threads of Python take turns, so what each waited is taken off. The threads of a pool beneath (OpenMP's) work at the
same time as the one that called them, which sleeps until the last is done: what they waited is taken off as far as
that sleep goes.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

TASKS = Path("/proc/self/task")
NANO = 1e-9


@dataclass(frozen=True, slots=True)
class Reading:
    """The clocks at one moment; by thread, the seconds that it ran and that it waited for a processor."""

    wall: float
    threads: dict[int, tuple[float, float]]


def read_clocks() -> Reading:
    return Reading(time.perf_counter(), {int(task.name): times for task in _tasks() if (times := _times(task))})


def _tasks() -> list[Path]:
    try:
        return list(TASKS.iterdir())
    except OSError:
        return []


def _times(task: Path) -> tuple[float, float] | None:
    # A thread may end between the listing and this.
    try:
        ran, waited, _ = (task / "schedstat").read_text().split()
    except (OSError, ValueError):
        return None
    return int(ran) * NANO, int(waited) * NANO


def sees_waiting() -> bool:
    """Whether this system tells how long threads wait for a processor."""
    return bool(read_clocks().threads)


def own_seconds(before: Reading, after: Reading) -> float:
    """Between two readings: what the work took less what it waited for a processor."""
    python = {thread.native_id for thread in threading.enumerate()}
    return net(before, after, python=python)


def net(before: Reading, after: Reading, *, python: set[int | None]) -> float:
    wall = after.wall - before.wall
    ran = waited = pool_waited = 0.0
    for thread, (ran_after, waited_after) in after.threads.items():
        ran_before, waited_before = before.threads.get(thread, (0.0, 0.0))
        if thread in python:
            ran += ran_after - ran_before
            waited += waited_after - waited_before
        else:
            pool_waited += waited_after - waited_before
    asleep = max(0.0, wall - ran - waited)
    # Threads that ran at once make their sum more than the wall; never less than nothing is left, never more than all.
    return min(wall, max(wall - waited - min(asleep, pool_waited), min(ran, wall)))
