"""Writing files so that a name means a whole file: flushed to disk, read back, renamed into place.

Nothing here trusts a write that returned: what stands in a file is compared with what was meant to stand there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rlctl import regular

BLOCK = 2**20
"""Bytes read at a time while hashing: hashlib lets other threads run meanwhile."""


def write(path: Path, content: bytes) -> None:
    """Write a small file whole and flush it. Raises OSError, also when it does not read back as written."""
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    if path.read_bytes() != content:
        raise OSError(f"{path.name} does not read back as it was written")


def replace(path: Path, content: bytes) -> None:
    """Write a small file beside `path` and rename it there: readers see the old content or the new, never a part."""
    aside = path.with_name(f".{path.name}.partial")
    try:
        write(aside, content)
        aside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


class HashedFile:
    """A file to write into, which knows the SHA-256 of what it was given, whatever becomes of it on disk."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return self.stream.write(data)

    def flush(self) -> None:
        self.stream.flush()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


@contextlib.contextmanager
def hashed(path: Path) -> Iterator[HashedFile]:
    with path.open("wb") as stream:
        yield HashedFile(stream)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with regular.open_rb(path) as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def files_in(folder: Path) -> list[Path]:
    """Every file below the folder, in the order of their names."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flush_tree(folder: Path) -> None:
    """Bring every file below the folder to the disk, and the names of all of them."""
    for file in files_in(folder):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    for below in sorted(path for path in folder.rglob("*") if path.is_dir()):
        flush_folder(below)
    flush_folder(folder)


def flush_folder(folder: Path) -> None:
    """Make names and renames within the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Remove a folder so that a kill halfway leaves nothing under its name."""
    doomed = folder.with_name(f".{folder.name.lstrip('.')}.removed")
    shutil.rmtree(doomed, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
