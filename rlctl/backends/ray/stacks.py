"""What an actor is doing, seen from beside it: one that hangs in a call cannot be asked.

faulthandler writes the stacks of an actor's threads on SIGUSR2, also while Python is held up in C or waits for another
rank. They go to a file without a name, which ends with its process; a task of Ray on the actor's machine sends the
signal and reads them through /proc.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ray

ANSWER_S = 2.0
"""Seconds in which a signalled process must have written."""
LOOK_S = 0.05
"""Between two looks at what it has written: when nothing came since the last one, it is done."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where an actor runs: Ray's name of the machine, process id, and the descriptor of its file of stacks.

    `file` is None where the system has no files without a name (it is Linux that has).
    """

    machine: str
    pid: int
    file: int | None


def whereabouts() -> Whereabouts:
    """Of the actor that calls, which from now on tells its stacks."""
    file = None
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("rlctl-stacks")
        faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
    return Whereabouts(ray.get_runtime_context().get_node_id(), os.getpid(), file)


def read(actors: Mapping[str, Whereabouts]) -> dict[str, str]:
    """The stacks of processes on this machine, by the actor's name; one that is gone or does not answer says so."""
    return {name: _of(actor) for name, actor in actors.items()}


def _of(actor: Whereabouts) -> str:
    if actor.file is None:
        return "its system cannot tell"
    path = Path(f"/proc/{actor.pid}/fd/{actor.file}")
    try:
        before = path.stat().st_size
        os.kill(actor.pid, signal.SIGUSR2)
        _settled(path, before)
        return path.read_bytes()[before:].decode(errors="replace") or f"nothing written within {ANSWER_S:g} s"
    except OSError as error:
        return f"not to be had: {error.strerror}"


def _settled(path: Path, before: int) -> None:
    """Wait until something was written after `before` bytes, and no more comes."""
    seen, end = before, time.monotonic() + ANSWER_S
    while time.monotonic() < end:
        time.sleep(LOOK_S)
        size = path.stat().st_size
        if size > before and size == seen:
            return
        seen = size
