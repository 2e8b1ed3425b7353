"""A small process that outlives its actor by a moment: when the actor ends, however it ends, it clears up after it.

`kill -9` of a sampler leaves its engine's processes behind and files in shared memory. The guard holds the reading end
of a pipe; once that closes, it kills the processes it was told of and removes the folder. Runs without rlctl or any
package: `python -I -S guard.py FOLDER`, then lines "PID START-TIME" on its standard input.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path


class Guard:
    """The actor's side: tells the guard which processes and folder are to go when this process ends."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-I", "-S", __file__, str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, text=True)

    def watch(self, pids: list[int]) -> None:
        assert self._process.stdin is not None
        for pid in pids:
            if (started := start_time(pid)) is not None:
                self._process.stdin.write(f"{pid} {started}\n")
        self._process.stdin.flush()

    def release(self) -> None:
        """Clear up now, and wait until it is done."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def start_time(pid: int) -> str | None:
    """When a process began, in clock ticks since boot, which tells it from a later one of that number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def descendants(pid: int) -> list[int]:
    """Every process below one, nearest first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, level = [], children.get(pid, [])
    while level:
        found += level
        level = [grandchild for child in level for grandchild in children.get(child, [])]
    return found


def main(folder: str) -> None:
    """Wait for the end of standard input, then kill and remove."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched = [line.split() for line in sys.stdin]
    for pid, started in watched:
        if start_time(int(pid)) == started:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
