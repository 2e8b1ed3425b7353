"""One run, one folder: a lock that ends with the process that holds it, however that ends.

The lock is the kernel's (a POSIX record lock on `RUN/lock`), so a run that was killed holds none, and a folder on a
network disk is guarded between machines. What the file says of its holder is for people.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rlctl import regular
from rlctl.errors import ConfigError

LOCK = "lock"

_held: set[tuple[int, int]] = set()
"""(device, inode) of the locks of this process: the kernel would let it lock one file twice."""


@contextlib.contextmanager
def held(folder: Path, *, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder's lock; the folder is made where there is none. Raises ConfigError when another run holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(
            f"the run's folder {folder} cannot be written: {error.strerror or error}.", hint="set run.dir."
        ) from error
    identity = _identity(descriptor)
    if identity in _held:
        # Closing it would release the lock, which is the process's and not the descriptor's.
        raise _in_use(folder, "this process")
    try:
        _lock(descriptor, folder, note)
        _held.add(identity)
        try:
            yield
        finally:
            _held.discard(identity)
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool | None:
    """Whether a process, on this machine or another, holds the folder's lock; None where that cannot be asked.

    Only asks (F_GETLK): a lock taken for a moment would turn away a run that starts in that moment.
    """
    path = folder / LOCK
    if sys.platform != "linux":
        return None  # struct flock has another order elsewhere
    try:
        stat = path.stat()
        if (stat.st_dev, stat.st_ino) in _held:
            return True  # the kernel does not tell a process of its own locks, and closing the file would release it
        with regular.open_rb(path) as stream:
            # l_type, l_whence, l_start, l_len, l_pid, as <fcntl.h> of Linux has them: any lock on the whole file.
            answer = fcntl.fcntl(stream, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)


def left_by(folder: Path) -> str:
    """Who holds the lock, or held it and was killed, in words; "" where its last holder ended in order."""
    try:
        with regular.open_rb(folder / LOCK) as stream:
            return _holder(stream.fileno())
    except OSError:
        return ""


def _lock(descriptor: int, folder: Path, note: Callable[[str], None]) -> None:
    before = _holder(descriptor)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise _in_use(folder, before or "another process") from None
        note(f"note: {folder} is on a disk without locks ({error.strerror}); start no second run in it")
    if before:
        note(f"note: the lock of {before} is stale, since that process is gone: taken over")
    mine = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    with contextlib.suppress(OSError):  # only for people; on a full disk the lock holds without
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(mine).encode(), 0)


def _in_use(folder: Path, holder: str) -> ConfigError:
    return ConfigError(
        f"the run {folder} is in use by {holder}.",
        hint="wait for it or stop it; or choose another --name.",
    )


def _identity(descriptor: int) -> tuple[int, int]:
    stat = os.fstat(descriptor)
    return stat.st_dev, stat.st_ino


def _holder(descriptor: int) -> str:
    """Who wrote the file last and did not clear it, in words; "" for nobody."""
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
