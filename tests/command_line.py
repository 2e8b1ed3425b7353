"""`rlctl ...` as a user meets it: a process with its own environment, folder and streams, and an exit code.

Most of a short command is the import of torch and transformers, 4 s of a core. So commands are forked from a parent
that has imported them (`tests/warm_parent.py`), unless what they are given may be read at import or when an interpreter
starts: then, and wherever FRESH_INTERPRETERS is set, each gets an interpreter of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith("RLCTL_")}
"""The environment of a command: the developer's, but for rlctl's own variables."""

READ_WHEN_USED = (
    "RLCTL_", "PYTEST_", "WANDB_", "MLFLOW_", "RAY_ADDRESS", "TEST_OF_RAY_RUN", "CUDA_VISIBLE_DEVICES", "COLUMNS",
    "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "PWD",
)  # fmt: skip
"""Names, or their beginnings, of variables that no library reads when it is imported."""

LONGEST_S = 300.0
Stream = int | IO[Any]


def rlctl(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command, by default from the root of the checkout; `environ` is added to a clean environment."""
    return _ended(start(*arguments, cwd=cwd or ROOT, environ={**environment(), **environ}))


def fresh(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """The same in an interpreter of its own."""
    return _ended(start(*arguments, cwd=cwd or ROOT, environ={**environment(), **environ}, forked=False))


def start(
    *arguments: str,
    cwd: Path,
    environ: Mapping[str, str],
    stdout: Stream = PIPE,
    stderr: Stream = PIPE,
    forked: bool = True,
) -> subprocess.Popen[str]:
    """Begin a command, with nothing but this environment, in a session of its own."""
    kind = Forked if forked and not _needs_an_interpreter(environ) else subprocess.Popen
    command = [sys.executable, "-m", "rlctl", *arguments]
    return kind(
        command, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True,
        start_new_session=True,
    )  # fmt: skip


def environment() -> dict[str, str]:
    """That of a command which is told nothing else: offline, one thread, with the cache folder of the tests."""
    kept = {name: os.environ[name] for name in ("RLCTL_CACHE_DIR",) if name in os.environ}
    return {**CLEAN, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **kept}


def _needs_an_interpreter(environ: Mapping[str, str]) -> bool:
    if sys.platform != "linux" or os.environ.get("FRESH_INTERPRETERS"):
        return True
    return _read_at_import(environ) != _read_at_import(environment())


def _read_at_import(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(READ_WHEN_USED)}


def _ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    with process:
        try:
            out, err = process.communicate(timeout=LONGEST_S)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


class Forked(subprocess.Popen[str]):
    """A command that the parent of commands forks and waits for, which tells its number and how it ended.

    What a Popen does by itself, all but pipes, is done by the methods below, of which only the names are CPython's.
    """

    def _execute_child(self, args: Any, executable: Any, *others: Any) -> None:
        names = list(inspect.signature(subprocess.Popen._execute_child).parameters)[3:]  # type: ignore[attr-defined]
        given = dict(zip(names, others, strict=True))
        pipes = [given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        streams = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        request = {"arguments": args[3:], "cwd": str(given["cwd"]), "environ": dict(given["env"])}
        self.status, status = os.pipe()
        channel, parent = _parent()
        try:
            with contextlib.suppress(BrokenPipeError):  # told below, with what it said at its end
                socket.send_fds(channel, [json.dumps(request).encode()], [*streams, status])
        finally:
            os.close(status)
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        if not (told := self._told()):
            raise RuntimeError(f"the parent of commands is gone: {parent.communicate()[1]}")
        self.pid, self._child_created = int(told), True

    def _told(self) -> bytes:
        """The next line; none where who waits for the command is gone."""
        return b"".join(iter(lambda: os.read(self.status, 1).strip(), b""))

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and select.select([self.status], [], [], 0)[0]:
            self.returncode = int(self._told())
            os.close(self.status)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None and not select.select([self.status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        code = self._internal_poll()
        assert code is not None
        return code


@functools.cache
def _parent() -> tuple[socket.socket, subprocess.Popen[str]]:
    """The parent of commands, which ends when the channel to it is closed, as it is when this process is gone."""
    # A message is one request: a sequence of packets keeps them apart.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        program = [sys.executable, "-m", "tests.warm_parent", str(theirs.fileno())]
        # Pipes, since Python looks at what its streams are when it makes them, and those of commands are pipes.
        process = subprocess.Popen(
            program, cwd=ROOT, env=environment(), pass_fds=[theirs.fileno()], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=PIPE, stderr=PIPE, text=True,
        )  # fmt: skip
    atexit.register(lambda: (ours.close(), process.communicate()))
    return ours, process
