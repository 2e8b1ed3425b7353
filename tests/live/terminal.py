"""A command on a terminal of its own whose screen can be read: a pseudo-terminal, and pyte to draw what it gets."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Sequence

import pyte


class Terminal:
    """Runs the command until it ends; `received` is all that it wrote."""

    def __init__(self, command: Sequence[str], *, columns: int, lines: int, environ: dict[str, str]) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=10_000)
        self.stream = pyte.ByteStream(self.screen)
        self.received = b""
        self.exit_code: int | None = None
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            os.execvpe(command[0], list(command), environ)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.master)

    def resize(self, columns: int, lines: int) -> None:
        """As a window that is dragged: lines that have become too long are broken, as most terminals do."""
        self._reflow(columns, lines)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _reflow(self, columns: int, lines: int) -> None:
        """pyte cuts lines where terminals break them; so the screen is written again at the new width."""
        above, rows = self.history(), self.rows()
        used = rows[: self.screen.cursor.y + 1]
        column = self.screen.cursor.x
        self.screen = pyte.HistoryScreen(columns, lines, history=10_000)
        self.stream = pyte.ByteStream(self.screen)
        self.stream.feed("\r\n".join([*above, *used]).encode())
        ends_at = len(used[-1]) if used else 0
        if column < ends_at:
            self.stream.feed(f"\x1b[{ends_at - column}D".encode())

    def until(self, holds: Callable[[], bool], *, within_s: float) -> None:
        """Read until that is so. Raises AssertionError, with the screen, when it takes too long or the command ends."""
        deadline = time.monotonic() + within_s
        while not holds():
            assert self.exit_code is None, f"ended with {self.exit_code}:\n{self.text()}"
            assert time.monotonic() < deadline, f"still not, after {within_s} s:\n{self.text()}"
            self._read()

    def until_end(self, *, within_s: float) -> int:
        deadline = time.monotonic() + within_s
        while self.exit_code is None:
            assert time.monotonic() < deadline, f"has not ended after {within_s} s:\n{self.text()}"
            self._read()
        return self.exit_code

    def _read(self) -> None:
        ready, _, _ = select.select([self.master], [], [], 0.05)
        if not ready:
            return
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the other side is closed: the command has ended
            data = b""
        if data:
            self.received += data
            self.stream.feed(data)
        else:
            self.exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]

    def text(self) -> str:
        return "\n".join(self.rows())

    def history(self) -> list[str]:
        """What has scrolled away above the screen."""
        width = self.screen.columns
        return ["".join(row[x].data for x in range(width)).rstrip() for row in self.screen.history.top]
