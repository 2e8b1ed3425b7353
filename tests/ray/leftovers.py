"""What a run has left on this machine: processes that carry its mark, and files in shared memory."""

from __future__ import annotations

import time
from pathlib import Path

from rlctl.backends.ray.sync import SHARED_MEMORY

MARK = "TEST_OF_RAY_RUN"
"""An environment variable that every process of a run inherits."""


def processes(mark: str) -> list[str]:
    """Command lines of the living processes with that mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:100]
                if command:
                    found.append(f"{entry.name} {command}")
        except OSError:
            continue
    return found


OURS = ("rlctl-", "psm_", "plasma")
"""How files of rlctl, vLLM and Ray begin: other tests run at the same time."""


def shared_memory() -> set[str]:
    return {file.name for file in SHARED_MEMORY.iterdir() if file.name.startswith(OURS)}


def processes_after(mark: str, seconds: float) -> list[str]:
    """Those that are still there when none has ended by itself within that time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and processes(mark):
        time.sleep(0.2)
    return processes(mark)
