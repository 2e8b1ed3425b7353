"""Runs in processes of their own, which can be killed at any moment.

For the `local` backend a life is forked from this process once the libraries are loaded, which takes a tenth of a
second where loading them takes several; no thread has been started by then. Other backends start processes of their
own, and get a fresh interpreter.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

BEGUN = "a step: "
"""What a run prints when its backend has started and the first step is about to begin."""

POLL_S = 0.002


class Life(Protocol):
    """One process of a run."""

    def ended(self) -> int | None:
        """The exit code, negative for a signal; None while it lives."""

    def kill(self) -> None: ...


class Forked:
    """`rlctl ARGUMENTS` in a copy of this process, its output in the file `log`."""

    def __init__(self, arguments: Sequence[str], *, log: Path) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(arguments, log)

    def ended(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.code = os.waitstatus_to_exitcode(status)


def _become(arguments: Sequence[str], log: Path) -> None:
    """Run the command in this forked process and end it, whatever happens: what follows here is its parent's."""
    code = 1
    try:
        _die_with_parent()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        from rlctl import cli

        cli.main(arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _die_with_parent() -> None:
    """No life outlasts the test that began it, however that ends; where the system has no word for it, it may."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


class Spawned:
    """`rlctl ARGUMENTS` in a fresh interpreter, the leader of a group of its own."""

    def __init__(self, arguments: Sequence[str], *, log: Path) -> None:
        with log.open("a") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rlctl", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def ended(self) -> int | None:
        return self.process.poll()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def warm_up() -> None:
    """Load what every life of the local backend needs, before the first fork."""
    import torch  # noqa: F401
    import transformers  # noqa: F401

    import rlctl.backends.local.backend
    import rlctl.display
    import rlctl.engine.sampler
    import rlctl.loop  # noqa: F401


def begin(arguments: Sequence[str], *, log: Path, forked: bool) -> Life:
    return Forked(arguments, log=log) if forked else Spawned(arguments, log=log)


def until(life: Life, *, seconds: float, or_when: Callable[[], bool] = lambda: False) -> bool:
    """Wait for so many seconds, or until something is so; false when the life ended before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not or_when():
        if life.ended() is not None:
            return False
        time.sleep(POLL_S)
    return life.ended() is None
