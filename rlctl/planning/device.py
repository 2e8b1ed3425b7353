"""What a machine has: kind, number and memory of its devices, and their peak; given, of a data sheet, or this one's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlctl.errors import ConfigError
from rlctl.perf import datasheet_memory, datasheet_names, datasheet_peak
from rlctl.presets import did_you_mean

Kind = Literal["cpu", "cuda"]

LARGEST = 1e12
"""GiB or TFLOP/s that no device has; far beyond, sums are no numbers any more."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices that a run has; what is not known is None, and its source says why."""

    kind: Kind
    name: str
    num_devices: int | None
    """None where it was not said: as many as the run wants."""
    memory_bytes: float | None
    """Of one device; on a CPU of the machine."""
    memory_source: str
    host_bytes: float | None
    """Memory of the machine around the devices."""
    peak_flops: float | None
    """Of one device, at the run's dtype."""
    peak_source: str
    is_this: bool
    """Whether it is the machine that the plan is made on."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user said of the machine; None and "" where nothing."""

    device: str = ""
    gpu_memory_gb: float | None = None
    num_gpus: int | None = None
    host_memory_gb: float | None = None
    peak_tflops: float | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether it is another machine than this one."""
        return bool(self.device or self.gpu_memory_gb is not None or self.num_gpus is not None)


def machine(wanted: Wanted) -> Machine:
    """The machine that was described, or else this one. Raises ConfigError for a description that is none."""
    for option, value in (
        ("--gpu-memory-gb", wanted.gpu_memory_gb),
        ("--memory-gb", wanted.host_memory_gb),
        ("--peak-tflops", wanted.peak_tflops),
    ):
        if value is not None and not 0 < value < LARGEST:
            raise ConfigError(
                f"{option} = {value:g} must be a number above 0 and below {LARGEST:g}.",
                hint="leave it out if it is not known.",
            )
    if wanted.device.lower() == "cpu":
        return _cpu(wanted)
    if wanted.elsewhere:
        return _gpus(wanted, name=wanted.device)
    found = _gpu_here()
    return _cpu(wanted) if found is None else _these_gpus(wanted, *found)


def _gpus(wanted: Wanted, *, name: str) -> Machine:
    sheet = datasheet_memory(name) if name else None
    if name and datasheet_peak(name) is None and wanted.gpu_memory_gb is None:
        names = datasheet_names()
        raise ConfigError(
            f"--device {name} is in no data sheet that rlctl has.{did_you_mean(name, names)}",
            hint=f"give --gpu-memory-gb and --peak-tflops, or one of {', '.join(names)}, cpu.",
        )
    memory, source = sheet, f"data sheet of {name}" if sheet else f"the memory of a {name or 'GPU'} is not known"
    if wanted.gpu_memory_gb is not None:
        memory, source = wanted.gpu_memory_gb * 2**30, "--gpu-memory-gb"
    peak, peak_source = _peak(wanted, name)
    return Machine(
        "cuda", name or "GPU", wanted.num_gpus, memory, source, _gib(wanted.host_memory_gb), peak, peak_source,
        is_this=False,
    )  # fmt: skip


def _peak(wanted: Wanted, name: str) -> tuple[float | None, str]:
    if wanted.peak_tflops is not None:
        return wanted.peak_tflops * 1e12, "--peak-tflops"
    peak = datasheet_peak(name) if name else None
    return peak, f"data sheet of {name}, dense bfloat16" if peak else "give --device or --peak-tflops"


def _these_gpus(wanted: Wanted, name: str, count: int, memory: float) -> Machine:
    peak, peak_source = _peak(wanted, name)
    host = _gib(wanted.host_memory_gb) or memory_here()[0]
    return Machine("cuda", name, count, memory, "this machine's", host, peak, peak_source, is_this=True)


def _gpu_here() -> tuple[str, int, float] | None:
    """(name, how many, bytes of one) of this machine's GPUs."""
    import torch

    if not torch.cuda.is_available():
        return None
    first = torch.cuda.get_device_properties(0)
    return first.name, torch.cuda.device_count(), float(first.total_memory)


def _cpu(wanted: Wanted) -> Machine:
    for option, value in (("--gpu-memory-gb", wanted.gpu_memory_gb), ("--num-gpus", wanted.num_gpus)):
        if value is not None:
            raise ConfigError(
                f"{option} = {value:g} describes GPUs, and --device is cpu.", hint="leave one of them out."
            )
    memory, source = memory_here()
    if wanted.host_memory_gb is not None:
        memory, source = wanted.host_memory_gb * 2**30, "--memory-gb"
    peak = wanted.peak_tflops * 1e12 if wanted.peak_tflops is not None else None
    told = "--peak-tflops" if peak else "a CPU's peak is measured when a run starts; give --peak-tflops"
    return Machine("cpu", "cpu", 1, memory, source, memory, peak, told, is_this=True)


def _gib(value: float | None) -> float | None:
    return None if value is None else value * 2**30


CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""What a container may hold, by cgroup version 2 (https://docs.kernel.org/admin-guide/cgroup-v2.html) and 1."""


def memory_here() -> tuple[float | None, str]:
    """(bytes that processes of this machine may hold, where the figure is from)."""
    try:
        whole = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError):
        return None, "this system does not say how much memory it has"
    for file in CGROUP_LIMITS:
        try:
            limit = float(Path(file).read_text())
        except (OSError, ValueError):  # not there, or the word "max"
            continue
        if limit < whole:
            return limit, "limit of this container"
    return whole, "this machine's"
