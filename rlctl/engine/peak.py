"""The FLOP/s a device could reach: a data sheet for a GPU, a measured matrix product for a CPU.

A CPU's data sheet says little about the cores one has been given, so its peak is the best of several
products of 2048 x 2048 matrices at the run's dtype, kept for this machine in the cache folder.
"""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path

import torch

from rlctl.cache import cache_folder
from rlctl.perf import datasheet_peak

SIZE = 2048
REPEATS = 7


def device_peak(device: torch.device, dtype: torch.dtype) -> tuple[float | None, str]:
    """(FLOP/s or None, where the figure comes from or why there is none)."""
    name = str(dtype).removeprefix("torch.")
    if device.type == "cuda":
        gpu = torch.cuda.get_device_name(device)
        if dtype != torch.bfloat16:
            return None, f"no data-sheet peak for {name} on {gpu}"
        peak = datasheet_peak(gpu)
        return peak, f"data sheet of {gpu}, dense bfloat16" if peak else f"no data-sheet peak for {gpu}"
    if device.type != "cpu":
        return None, f"no peak for {device.type} devices"
    threads = torch.get_num_threads()
    return _best_cpu_peak(dtype), f"measured {SIZE}x{SIZE} product, {name}, {threads} thread{'s' * (threads > 1)}"


def _best_cpu_peak(dtype: torch.dtype) -> float:
    file = cache_folder() / "cpu_peaks.json"
    key = f"{_cpu_name()}/{torch.get_num_threads()} threads/{dtype}/torch {torch.__version__}"
    known = _read(file)
    best = max(measure(dtype), known.get(key, 0.0))
    if best != known.get(key):
        _write(file, {**known, key: best})
    return best


def measure(dtype: torch.dtype) -> float:
    """FLOP/s of the fastest of several matrix products."""
    a, b = torch.randn(2, SIZE, SIZE).to(dtype)
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2.0 * SIZE**3 / best


def _read(file: Path) -> dict[str, float]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return (
        {key: value for key, value in content.items() if isinstance(value, float)} if isinstance(content, dict) else {}
    )


def _write(file: Path, peaks: dict[str, float]) -> None:
    # A cache that cannot be written costs half a second at the next start, and nothing else.
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(peaks, indent=1))
        aside.replace(file)
    except OSError:
        return


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()} x{len(os.sched_getaffinity(0))}"
