"""Where rlctl keeps what it can make again: compiled kernels, measured peaks, gold results, generated databases."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """RLCTL_CACHE_DIR, else rlctl's folder in the user's cache."""
    chosen = os.environ.get("RLCTL_CACHE_DIR")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else base / "rlctl"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that a reader sees whole or not at all, whoever else writes it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    aside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
