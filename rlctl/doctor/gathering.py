"""All facts of this machine at once: what waits, waits side by side, each with its own limit."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from rlctl import cache, hub
from rlctl.backends import registry
from rlctl.doctor import gpus, machine, network, software
from rlctl.doctor.facts import BackendFacts, Facts, Space
from rlctl.doctor.versions import FILE, Versions

VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "LD_PRELOAD",
    "RAY_ADDRESS", "RLCTL_NO_KERNELS",
)  # fmt: skip

T = TypeVar("T")


def gather(versions: Versions, *, run_dir: str, backend: str | None) -> Facts:
    """Find everything out; takes as long as the slowest part. Raises BackendNotFound, at once."""
    if backend is not None:
        registry.get(backend)
    with ThreadPoolExecutor(max_workers=6) as pool:
        torch = pool.submit(software.torch)
        driver = pool.submit(gpus.driver)
        reachable = pool.submit(network.hub_facts)
        compiler = pool.submit(software.compiler)
        asked = pool.submit(_backend, backend)
        packages = software.packages(versions.names())
        return Facts(
            system=software.system(),
            python=software.python(),
            packages=packages,
            damaged=software.damaged(versions.names()),
            unmet=software.unmet(packages, extras=versions.extras_of(backend)),
            cpu=machine.cpu(),
            memory=machine.memory(),
            shm=machine.space("shared memory", Path("/dev/shm")) if Path("/dev/shm").exists() else None,
            spaces=_spaces(run_dir),
            proxies=network.proxies(),
            ports=network.ports(versions.ports()),
            open_files=machine.open_files(),
            clock_behind_s=machine.clock_behind(FILE),
            environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
            torch=torch.result(),
            driver=driver.result(),
            hub=reachable.result(),
            compiler=compiler.result(),
            backend=asked.result(),
        )


def _backend(name: str | None) -> BackendFacts | None:
    return None if name is None else software.backend(name)


def _spaces(run_dir: str) -> Sequence[Space]:
    return [
        _space("runs (run.dir)", lambda: Path(os.path.expanduser(run_dir)).absolute()),  # noqa: PTH111  # as a run does
        _space("rlctl's cache", cache.cache_folder),
        _space("the hub's cache", hub.hub_cache),
        _space("temporary files", lambda: Path(tempfile.gettempdir())),
    ]


def _space(purpose: str, path: Callable[[], Path]) -> Space:
    try:
        return machine.space(purpose, path())
    except (RuntimeError, OSError) as error:  # no HOME, and nobody knows whose it would be; no temporary folder
        return Space(purpose, "n/a", error=str(error))
