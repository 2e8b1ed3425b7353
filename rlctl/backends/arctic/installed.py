"""Which release of the platform's package is here, told from its files: importing it fails on many machines.

The published 0.1.2 has no top-level `__init__.py` and imports vLLM as soon as any of it is imported. The
development version is told apart by its unified client (`client/client.py`) and its codec (`wire.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlctl.backends.arctic import INSTALL
from rlctl.backends.arctic.settings import ArcticSettings
from rlctl.backends.probe.packages import package_of
from rlctl.backends.probe.source import find_spec
from rlctl.errors import BackendUnavailable

Flavour = Literal["unified", "legacy"]


@dataclass(frozen=True, slots=True)
class Release:
    """What is installed."""

    folder: Path
    version: str
    """As its distribution has it; "unknown" where the files lie outside of one."""
    has_unified: bool
    has_safe_codec: bool
    """Whether tensors travel as safetensors frames; if not, as `torch.save`."""

    def flavour(self, settings: ArcticSettings) -> Flavour:
        """Which client the settings mean. Raises BackendUnavailable where this release lacks it."""
        if settings.client == "legacy" or (settings.client == "auto" and not self.has_unified):
            return "legacy"
        if not self.has_unified:
            raise BackendUnavailable(
                f"remote_backend.arctic.client = unified, but arctic_platform {self.version} in {self.folder} has no "
                "client/client.py.",
                hint='set remote_backend.arctic.client = "auto", or install the development version.',
            )
        return "unified"


def installed_release() -> Release | None:
    """The installed release, None when there is none."""
    try:
        return find_release()
    except BackendUnavailable:
        return None


def find_release() -> Release:
    """The installed release. Raises BackendUnavailable when there is none."""
    spec = find_spec("arctic_platform")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    package = package_of("arctic_platform", distributed_as="arctic-platform")
    for folder in folders:
        if (folder / "rl" / "http_client.py").is_file() or (folder / "client" / "client.py").is_file():
            return Release(
                folder,
                package.version if package else "unknown",
                has_unified=(folder / "client" / "client.py").is_file(),
                has_safe_codec=(folder / "wire.py").is_file(),
            )
    found = f"; {', '.join(map(str, folders))} holds no client of it" if folders else ""
    raise BackendUnavailable(f"Backend 'arctic' needs arctic_platform, which is not installed{found}.", hint=INSTALL)
