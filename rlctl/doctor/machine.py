"""Processor, memory, disks and limits, from /proc, /sys and the file systems."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rlctl.doctor.facts import Cpu, Memory, Space

UNLIMITED = 2**60
"""Version 1 control groups say "no limit" with a number near 2**63."""


def cpu(root: Path = Path("/")) -> Cpu:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Cpu(
        cores=cores,
        quota=cpu_quota(root),
        flags=_flags(_read(root / "proc/cpuinfo")),
        omp_num_threads=os.environ.get("OMP_NUM_THREADS"),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def _flags(cpuinfo: str) -> frozenset[str]:
    lines = (line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features")))
    return frozenset(next(lines, "").partition(":")[2].split())


def memory(root: Path = Path("/")) -> Memory:
    words = dict(line.split(":", 1) for line in _read(root / "proc/meminfo").splitlines() if ":" in line)
    sizes = {name: int(value.split()[0]) * 1024 for name, value in words.items() if value.split()[:1]}
    limits = [
        (limit, _number(folder / usage))
        for folder in control_groups(root, "memory")
        for name, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
        if (limit := _number(folder / name)) is not None and limit < UNLIMITED
    ]
    limit, used = min(limits, key=lambda pair: pair[0]) if limits else (None, None)
    return Memory(sizes.get("MemTotal"), sizes.get("MemAvailable"), limit, used)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of time: the least of what this process's control group and those above it allow."""
    quotas = []
    for folder in control_groups(root, "cpu"):
        quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control group and all above it, of version 2 and of version 1.

    Within a container the group's own path is often not there, and its limits lie at the top.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if names else "")
        inner = Path(path.lstrip("/"))
        yield from (top / folder for folder in (inner, *inner.parents))


def space(purpose: str, path: Path) -> Space:
    """How much is free where `path` is or would be, and whether a file can be made there; leaves nothing behind."""
    there = next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
    try:
        usage = shutil.disk_usage(there)
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
    except OSError as error:
        return Space(purpose, shown(path), error=error.strerror or str(error))
    return Space(purpose, shown(path), usage.total, usage.free)


def shown(path: Path) -> str:
    """The path without the name of whoever is at home there: what is printed gets pasted."""
    home = os.environ.get("HOME")
    return str("~" / path.relative_to(home)) if home and home != "/" and path.is_relative_to(home) else str(path)


def open_files() -> int | None:
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def clock_behind(file: Path) -> float | None:
    """Seconds that the clock is behind the date of a file that was surely written in the past."""
    try:
        behind = file.stat().st_mtime - time.time()
    except OSError:
        return None
    return behind if behind > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None
