"""Run a program of the machine's, as nvidia-smi or a compiler, within a time limit that holds whatever it does.

`subprocess.run` waits without limit for a program that it had to kill: one that hangs in the driver of a lost GPU is
never gone. And it waits for whoever else has the program's output open. Here neither keeps anybody waiting.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import IO

GONE_S = 1.0
"""Seconds that a killed program gets to be gone, and the last output to arrive, before either is given up."""

_running: set[subprocess.Popen[bytes]] = set()


def run(command: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """What the program says and how it ends. At the limit it is killed, with all that it has started.

    It has a session of its own, so that this reaches its children; Ctrl-C does not reach it, so it is killed when this
    process ends. Raises OSError when it cannot be started, subprocess.TimeoutExpired at the limit.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    _running.add(process)
    outputs = [_Output(stream) for stream in (process.stdout, process.stderr)]
    try:
        code = process.wait(timeout_s)
    except BaseException:
        _kill(process)
        with contextlib.suppress(subprocess.TimeoutExpired):  # not even SIGKILL ends it: left to the kernel
            process.wait(GONE_S)
        raise
    finally:
        _running.discard(process)
    out, err = (output.text() for output in outputs)
    return subprocess.CompletedProcess(command, code, out, err)


class _Output:
    """What a stream brings, read in a thread, since a child of the program may hold it open for ever."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.parts: list[bytes] = []
        self.thread = threading.Thread(target=self._read, args=(stream,), daemon=True, name="output of a program")
        self.thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            while part := os.read(stream.fileno(), 65536):
                self.parts.append(part)

    def text(self) -> str:
        self.thread.join(GONE_S)
        return b"".join(self.parts).decode(errors="replace")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):  # gone, or another user's: it was made so by a set-user-ID bit
        os.killpg(process.pid, signal.SIGKILL)


@atexit.register
def _kill_all() -> None:
    for process in list(_running):
        _kill(process)
