"""A small process that outlives its actor by a moment: when the actor ends, however it ends, it clears up after it.

`kill -9` of a sampler leaves its engine's processes behind and files in shared memory. The guard holds the reading end
of a pipe; once that closes, it kills the processes it was told of and removes the folder. The driver has one for a
cluster that it started. Runs without rlctl or any package: `python -I -S guard.py [FOLDER]`, then lines
"PID START-TIME" and "file PATH" on its standard input.
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

    def __init__(self, folder: Path | None = None) -> None:
        command = [sys.executable, "-I", "-S", __file__, *([str(folder)] if folder else [])]
        self._starter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._starter.wait()

    def watch(self, pids: list[int]) -> None:
        assert self._starter.stdin is not None
        for pid in pids:
            if (started := start_time(pid)) is not None:
                self._starter.stdin.write(f"{pid} {started}\n")
            for file in shared_files(pid):
                self._starter.stdin.write(f"file {file}\n")
        self._starter.stdin.flush()

    def release(self) -> None:
        """Clear up now, and wait until it is done."""
        assert self._starter.stdin is not None
        assert self._starter.stdout is not None
        self._starter.stdin.close()
        self._starter.stdout.read()


def start_time(pid: int) -> str | None:
    """When a process began, in clock ticks since boot, which tells it from a later one of that number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def shared_files(pid: int) -> set[str]:
    """Files in shared memory that a process has mapped: they outlive it when it cannot remove them."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line.split()[-1] for line in lines if "/dev/shm/" in line and not line.endswith("(deleted)")}


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


def main(*folders: str) -> None:
    """Wait for the end of standard input, then kill and remove."""
    # Ray kills the children of an actor with it, so the guard must not be one: its parent ends here.
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    told = [line.split() for line in sys.stdin]
    kill({(int(pid), started) for pid, started in told if pid != "file"})
    for kind, file in told:
        if kind == "file":
            Path(file).unlink(missing_ok=True)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def kill(processes: set[tuple[int, str]]) -> None:
    for pid, started in processes:
        if start_time(pid) == started:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


if __name__ == "__main__":
    main(*sys.argv[1:])
