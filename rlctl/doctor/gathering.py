"""All facts of this machine at once: what waits, waits side by side, each with its own limit."""

from __future__ import annotations

import functools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Generic, TypeVar

from rlctl import cache, hub
from rlctl.backends import registry
from rlctl.doctor import gpus, machine, network, software
from rlctl.doctor.facts import BackendFacts, Compiler, Driver, Facts, Hub, Space, Torch
from rlctl.doctor.versions import FILE, Versions

VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "LD_PRELOAD",
    "RAY_ADDRESS", "RLCTL_NO_KERNELS",
)  # fmt: skip

T = TypeVar("T")

SILENT = "no answer"
FILES_TIMEOUT_S = 10.0
"""Of what asks a file system, which never answers when the disk is another machine's and that is gone."""
LEEWAY_S = 5.0
"""How much longer a part with a limit of its own may take, before it counts as one that does not answer."""


def gather(versions: Versions, *, run_dir: str, backend: str | None) -> Facts:
    """Find everything out; takes as long as the slowest part, and each has a limit. Raises BackendNotFound, at once."""
    if backend is not None:
        registry.get(backend)
    torch = Asked(software.torch, Torch("timeout", SILENT), within=software.TORCH_TIMEOUT_S + LEEWAY_S)
    driver = Asked(gpus.driver, Driver("timeout", SILENT), within=gpus.TIMEOUT_S + LEEWAY_S)
    unreached = Hub(network.endpoint(), offline=False, reason=SILENT)
    hub_facts = Asked(network.hub_facts, unreached, within=2 * network.TIMEOUT_S + LEEWAY_S)
    silent_compiler = Compiler("the C compiler", SILENT)
    compiler = Asked(software.compiler, silent_compiler, within=software.COMPILER_TIMEOUT_S + LEEWAY_S)
    loaded = None if backend is None else _backend(backend)
    silent_shm: Space | None = Space("shared memory", "/dev/shm", error=SILENT)
    shm = Asked(_shm, silent_shm, within=FILES_TIMEOUT_S)
    spaces = _spaces(run_dir)
    packages = software.packages(versions.names())
    return Facts(
        system=software.system(),
        python=software.python(),
        packages=packages,
        damaged=software.damaged(versions.names()),
        unmet=software.unmet(packages, extras=versions.extras_of(backend)),
        cpu=machine.cpu(),
        memory=machine.memory(),
        proxies=network.proxies(),
        ports=network.ports(versions.ports()),
        open_files=machine.open_files(),
        clock_behind_s=machine.clock_behind(FILE),
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
        shm=shm.answer(),
        spaces=[space.answer() for space in spaces],
        torch=torch.answer(),
        driver=driver.answer(),
        hub=hub_facts.answer(),
        compiler=compiler.answer(),
        backend=None if loaded is None else loaded.answer(),
    )


def _backend(name: str) -> Asked[BackendFacts]:
    limit_s = software.TORCH_TIMEOUT_S + LEEWAY_S
    return Asked(functools.partial(software.backend, name), BackendFacts(name, SILENT), within=limit_s)


def _shm() -> Space | None:
    return machine.space("shared memory", Path("/dev/shm")) if Path("/dev/shm").exists() else None


def _spaces(run_dir: str) -> Sequence[Asked[Space]]:
    folders: list[tuple[str, Callable[[], Path]]] = [
        ("runs (run.dir)", lambda: Path(os.path.expanduser(run_dir)).absolute()),  # noqa: PTH111  # as a run does
        ("rlctl's cache", cache.cache_folder),
        ("the hub's cache", hub.hub_cache),
        ("temporary files", lambda: Path(tempfile.gettempdir())),
    ]
    return [
        Asked(functools.partial(_space, purpose, path), Space(purpose, "n/a", error=SILENT), within=FILES_TIMEOUT_S)
        for purpose, path in folders
    ]


def _space(purpose: str, path: Callable[[], Path]) -> Space:
    try:
        return machine.space(purpose, path())
    except (RuntimeError, OSError) as error:  # no HOME, and nobody knows whose it would be; no temporary folder
        return Space(purpose, "n/a", error=str(error))


class Asked(Generic[T]):
    """A question that is being answered in a thread; `silent` is the answer where none comes `within` seconds.

    The thread is a daemon, so that one which waits for ever keeps nobody from leaving.
    """

    def __init__(self, question: Callable[[], T], silent: T, *, within: float) -> None:
        self._found: Future[T] = Future()
        self._silent = silent
        self._until = time.monotonic() + within
        threading.Thread(target=self._ask, args=(question,), daemon=True, name="doctor").start()

    def _ask(self, question: Callable[[], T]) -> None:
        try:
            self._found.set_result(question())
        except BaseException as error:
            self._found.set_exception(error)  # raised where the answer is wanted

    def answer(self) -> T:
        try:
            return self._found.result(max(0.0, self._until - time.monotonic()))
        except FutureTimeout:
            return self._silent
