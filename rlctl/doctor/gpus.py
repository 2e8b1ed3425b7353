"""GPUs by the driver's own word, without torch: nvidia-smi with a time limit, since it hangs when a GPU is lost."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from rlctl import bounded
from rlctl.doctor.facts import Driver, Gpu

TIMEOUT_S = 15.0
"""Without persistence mode nvidia-smi takes seconds to wake a machine with eight GPUs."""
FIELDS = "driver_version,name,uuid,memory.total,memory.used,mig.mode.current"
MIB = 2**20
MOST_CHARACTERS = 200
"""Of an answer that is not understood."""


def driver(timeout_s: float = TIMEOUT_S) -> Driver:
    there = Path("/dev/nvidia0").exists()
    command = shutil.which("nvidia-smi")
    if command is None:
        return Driver("absent", device_files=there)
    try:
        done = bounded.run([command, f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"], timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        return Driver("timeout", f"did not answer within {timeout_s:g} s", device_files=there)
    except OSError as error:
        return Driver("failed", error.strerror or str(error), device_files=there)
    if done.returncode:
        words = (done.stdout + done.stderr).strip().splitlines()
        return Driver(
            "failed", words[0][:MOST_CHARACTERS] if words else f"exit code {done.returncode}", device_files=there
        )
    return parsed(done.stdout, device_files=there)


def parsed(text: str, *, device_files: bool) -> Driver:
    """The answer of nvidia-smi: a line a GPU, `[N/A]` for what a GPU does not have."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    strange = [row for row in rows if len(row) != len(FIELDS.split(","))]
    if strange:
        told = ", ".join(strange[0])[:MOST_CHARACTERS]
        return Driver("failed", f"an answer that is not understood: {told}", device_files=device_files)
    gpus = [
        Gpu(name, uuid, _bytes(total), _bytes(used) or 0, mig=mig == "Enabled")
        for _, name, uuid, total, used, mig in rows
    ]
    return Driver("ok", version=rows[0][0] if rows else None, gpus=gpus, device_files=device_files)


def _bytes(mebibytes: str) -> int | None:
    return int(mebibytes) * MIB if mebibytes.isascii() and mebibytes.isdigit() else None
