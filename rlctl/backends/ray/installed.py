"""Whether the packages of the Ray backend are here, asked where they are used: each machine has its own."""

from __future__ import annotations

import importlib
import importlib.util
import platform
import sys

from rlctl.errors import BackendUnavailable

INSTALL = "pip install 'rlctl[ray]'; on a cpu: constraints/ray-cpu.txt and scripts/install.sh of the source."


def require(module: str) -> None:
    """Raises BackendUnavailable naming the package, this machine and the install line."""
    if importlib.util.find_spec(module) is None:
        raise BackendUnavailable(
            f"backend 'ray' needs {module!r}, which is not installed on {platform.node()}.", hint=INSTALL
        )


def import_deepspeed() -> None:
    """Without mlflow, which its autotuner imports where it is installed: half of the seconds that a rank starts in.

    Raises BackendUnavailable as `require` does.
    """
    require("deepspeed")
    if not {"deepspeed", "mlflow"} & sys.modules.keys():
        sys.modules["mlflow"] = None  # type: ignore[assignment]  # so that importing it fails
        try:
            importlib.import_module("deepspeed")
        finally:
            del sys.modules["mlflow"]
