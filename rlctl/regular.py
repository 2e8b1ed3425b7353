"""Open a file only where it is one.

A name in a run's folder may belong to something else: opening a named pipe waits for its other end, and a device may
have no end. Files that a person names are opened as usual, since `<(...)` of a shell is a pipe on purpose.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class NotAFile(OSError):
    """Something else than a file has its name; `strerror` says what."""


def must_be_file(path: Path) -> None:
    """Raises NotAFile, or FileNotFoundError where there is nothing."""
    _check(path.stat().st_mode, path)


def open_rb(path: Path) -> BinaryIO:
    """The file, opened to be read. Raises NotAFile, and OSError as `open` does."""
    must_be_file(path)  # to open a device may already move it
    # It may have become a pipe in this moment.
    stream = open(path, "rb", opener=without_waiting)  # noqa: SIM115  # the caller closes it
    try:
        _check(os.fstat(stream.fileno()).st_mode, path)
    except NotAFile:
        stream.close()
        raise
    return stream


def without_waiting(name: str, flags: int) -> int:
    """An opener for `open`: a pipe that nobody reads is an error at once. To a file it makes no difference."""
    return os.open(name, flags | os.O_NONBLOCK, 0o666)


def read_bytes(path: Path) -> bytes:
    """All of the file. Raises NotAFile, and OSError as `open` does."""
    with open_rb(path) as stream:
        return stream.read()


def _check(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "something else")
        raise NotAFile(errno.EINVAL, f"it is {kind}, not a file", str(path))
