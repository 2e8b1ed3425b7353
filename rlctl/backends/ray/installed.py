"""Whether the packages of the Ray backend are here, asked where they are used: each machine has its own."""

from __future__ import annotations

import importlib.util
import platform

from rlctl.errors import BackendUnavailable

INSTALL = "pip install 'rlctl[ray]'; on a cpu: constraints/ray-cpu.txt and scripts/install.sh of the source."


def require(module: str) -> None:
    """Raises BackendUnavailable naming the package, this machine and the install line."""
    if importlib.util.find_spec(module) is None:
        raise BackendUnavailable(
            f"backend 'ray' needs {module!r}, which is not installed on {platform.node()}.", hint=INSTALL
        )
