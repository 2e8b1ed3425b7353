"""Stand-in packages under the platform's name, servers they talk to, and jobs to do with them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.arctic.platform import Platform
from tests.arctic.server import Server
from tests.backends.test_contract import JOB
from tests.needs import needs

ROOT = Path(__file__).parents[2]
STANDINS = Path(__file__).parent / "standins"


def forget_platform() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "arctic_platform"]:
        del sys.modules[name]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Puts a stand-in release first on the path: `installed("head")` or `installed("v012")`."""

    def install(release: str) -> None:
        forget_platform()
        # A package with an __init__.py wins over one without, wherever it stands on the path.
        others = [path for path in sys.path if not path.startswith(str(STANDINS))]
        monkeypatch.setattr(sys, "path", [str(STANDINS / release), *others])
        importlib.invalidate_caches()

    yield install
    forget_platform()


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the platform's published package."""
    site = ROOT / ".venv" / "published"
    how = f"pip install --no-deps --target {site} arctic-platform==0.1.2"
    needs("the published client", there=(site / "arctic_platform").is_dir(), how=how)
    forget_platform()
    monkeypatch.syspath_prepend(str(site))
    return site / "arctic_platform"


@pytest.fixture
def platform() -> Platform:
    return Platform()


@pytest.fixture
def serve(platform: Platform) -> Iterator[Callable[..., Server]]:
    running: list[Server] = []

    def start(release: str = "head") -> Server:
        server = Server(platform, release=release)  # type: ignore[arg-type]
        running.append(server)
        return server.__enter__()

    yield start
    for server in running:
        server.__exit__()


@pytest.fixture
def arctic_job(tiny_llama: Path) -> Any:
    return replace(JOB, model=str(tiny_llama), max_tokens_per_device=256)
