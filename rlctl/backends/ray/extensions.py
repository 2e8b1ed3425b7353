"""DeepSpeed's C++ extensions, built once a machine, whoever is killed while building them.

torch builds behind a lock file that nobody owns: after `kill -9` of a build it stays, and every later start would wait
for it forever. Here a build holds a lock that the system takes back when its process ends, in a folder of rlctl's own,
so a lock file that is found there belongs to the dead.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from rlctl.cache import cache_folder

FOLDER = "TORCH_EXTENSIONS_DIR"
"""The environment variable by which torch is told where to build."""


@contextmanager
def building() -> Iterator[None]:
    """Inside, DeepSpeed may build; others on this machine wait, and then find what was built.

    With TORCH_EXTENSIONS_DIR set by the user, builds and locks are torch's own. No collective may be waited for inside.
    """
    if os.environ.get(FOLDER):
        yield
        return
    folder = cache_folder() / f"extensions-py{sys.version_info.major}{sys.version_info.minor}-torch{torch.__version__}"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[FOLDER] = str(folder)
    with (folder / "owner").open("w") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        _unlock(folder)
        try:
            yield
        finally:
            del os.environ[FOLDER]


def _unlock(folder: Path) -> None:
    for left in folder.glob("*/lock"):
        left.unlink(missing_ok=True)
