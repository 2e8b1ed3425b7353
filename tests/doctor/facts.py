"""A healthy machine, to be changed in one respect at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlctl.doctor import judging, versions
from rlctl.doctor.facts import (
    GIB,
    BackendFacts,
    Compiler,
    Cpu,
    Device,
    Driver,
    Facts,
    Gpu,
    Hub,
    Memory,
    Port,
    Python,
    Space,
    Torch,
)
from rlctl.doctor.lines import Line

VERSIONS = versions.read()

H100 = Gpu("NVIDIA H100 80GB HBM3", "GPU-1a", 80 * GIB, GIB)
ARCHITECTURES = ("sm_80", "sm_90", "compute_90")
CUDA = Torch(
    "ok", cuda="12.8", available=True, devices=[Device(H100.name, (9, 0), 80 * GIB)] * 2, architectures=ARCHITECTURES
)
DRIVER = Driver("ok", version="570.86.15", gpus=[H100, replace(H100, uuid="GPU-2b")], device_files=True)

HEALTHY = Facts(
    system="Linux x86_64, glibc 2.36",
    python=Python("3.11.7", "CPython", in_environment=True),
    packages={name: known.tested[-1] for name, known in VERSIONS.packages.items()},
    torch=Torch("ok"),
    cpu=Cpu(8, flags=frozenset({"avx2", "avx512f", "amx_bf16"}), load=0.5),
    memory=Memory(total=64 * GIB, available=50 * GIB),
    shm=Space("shared memory", "/dev/shm", 32 * GIB, 32 * GIB),
    spaces=[Space("runs (run.dir)", "~/runs", 500 * GIB, 100 * GIB)],
    compiler=Compiler("/usr/bin/cc"),
    hub=Hub("https://huggingface.co", offline=False, reachable=True, skew_s=0.4),
    ports=[Port(6379, "Ray's head", taken=False)],
    open_files=65536,
)
WITH_GPUS = replace(HEALTHY, torch=CUDA, driver=DRIVER)
FOR_RAY = replace(HEALTHY, backend=BackendFacts("ray"))


def lines(facts: Facts = HEALTHY, **changes: Any) -> list[Line]:
    return judging.judge(replace(facts, **changes), VERSIONS)


def trouble(facts: Facts = HEALTHY, **changes: Any) -> list[tuple[str, str, str]]:
    """(status, name, what was found) of every line that is not ok; each of these has a cure."""
    told: Sequence[Line] = [line for line in lines(facts, **changes) if line.status != "ok"]
    assert all(line.cure for line in told)
    return [(line.status, line.name, line.found) for line in told]


def found(name: str, facts: Facts = HEALTHY, **changes: Any) -> str:
    return next(line.found for line in lines(facts, **changes) if line.name == name)
