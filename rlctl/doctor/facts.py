"""What is known of a machine, as plain records: a check is a function of these and of nothing else.

Sizes are bytes. A field that could not be found out is None, with the reason beside it where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Python:
    version: str
    implementation: str
    in_environment: bool
    """Whether it runs in a virtual environment or conda, not the system's own."""


@dataclass(frozen=True, slots=True)
class Unmet:
    """A requirement of an installed package that what is installed does not meet; `found` is None when absent."""

    package: str
    requirement: str
    """Name of what is asked for."""
    versions: str
    """As `>=2,<3`; empty for any."""
    found: str | None
    core: bool
    """Whether rlctl itself asks for it."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as torch sees it."""

    name: str
    capability: tuple[int, int]
    memory: int


@dataclass(frozen=True, slots=True)
class Torch:
    """What a process of its own found by importing torch."""

    state: Literal["ok", "absent", "broken", "timeout"]
    error: str = ""
    cuda: str | None = None
    """CUDA version that it was built for; None for a CPU build."""
    hip: str | None = None
    available: bool = False
    devices: Sequence[Device] = ()
    architectures: Sequence[str] = ()
    """`sm_90`, `compute_90`: what its kernels are compiled for."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the driver sees it."""

    name: str
    uuid: str
    memory: int | None
    """None where the driver does not say, as of a GPU that shares the machine's memory."""
    used: int
    mig: bool = False


@dataclass(frozen=True, slots=True)
class Driver:
    """What nvidia-smi says; `state` is absent where there is no nvidia-smi."""

    state: Literal["ok", "absent", "failed", "timeout"]
    error: str = ""
    version: str | None = None
    gpus: Sequence[Gpu] = ()
    device_files: bool = False
    """Whether /dev/nvidia0 is there."""


@dataclass(frozen=True, slots=True)
class Cpu:
    cores: int
    """Cores that this process may run on."""
    quota: float | None = None
    """Cores' worth of time that the control group allows; None without a limit."""
    flags: frozenset[str] = frozenset()
    omp_num_threads: str | None = None
    load: float | None = None
    """Processes that wanted to run, averaged over a minute."""

    @property
    def usable(self) -> float:
        return min(self.cores, self.quota) if self.quota else float(self.cores)


@dataclass(frozen=True, slots=True)
class Memory:
    total: int | None = None
    available: int | None = None
    limit: int | None = None
    """What the control group allows."""
    used_of_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Space:
    """A folder that is written to: the file system that it is, or would be, on."""

    purpose: str
    path: str
    total: int | None = None
    free: int | None = None
    error: str = ""
    """Why nothing can be written there; empty when it can."""


@dataclass(frozen=True, slots=True)
class Compiler:
    command: str | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Hub:
    endpoint: str
    offline: bool
    reachable: bool = False
    reason: str = ""
    skew_s: float | None = None
    """Seconds that this machine's clock is ahead of the hub's; None when it was not asked."""


@dataclass(frozen=True, slots=True)
class Port:
    number: int
    purpose: str
    taken: bool


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """The backend that was asked for, as a process of its own found it."""

    name: str
    error: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it."""

    system: str
    python: Python
    packages: Mapping[str, str]
    """Name of each installed package that matters -> version."""
    damaged: Mapping[str, str] = field(default_factory=dict)
    """Name of each that is there with metadata that tell no version -> what is wrong with them."""
    unmet: Sequence[Unmet] = ()
    torch: Torch = Torch("absent")
    driver: Driver = Driver("absent")
    cpu: Cpu = Cpu(1)
    memory: Memory = Memory()
    shm: Space | None = None
    spaces: Sequence[Space] = ()
    compiler: Compiler = Compiler()
    hub: Hub = Hub("", offline=True)
    proxies: Sequence[str] = ()
    ports: Sequence[Port] = ()
    open_files: int | None = None
    """Files that this process may open."""
    clock_behind_s: float | None = None
    """Seconds that the clock is behind the date of rlctl's own files; None when it is not."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the variables, those that decide something: CUDA_VISIBLE_DEVICES and the like."""
    backend: BackendFacts | None = None
