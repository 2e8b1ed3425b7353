"""Stacks of other processes: also of one that hangs in C, again and again, and of none that is gone or deaf."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_stack")]

HANGS = """
import ctypes, faulthandler, os, signal
file = os.memfd_create("stacks")
faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
def waits_for_another_rank():
    print(file, flush=True)
    while True:  # a signal ends the pause
        ctypes.PyDLL(None).pause()  # holds the interpreter's lock, as a collective of a C extension may
waits_for_another_rank()
"""


@pytest.fixture
def hanging() -> Iterator[Any]:
    from rlctl.backends.ray.stacks import Whereabouts

    process = subprocess.Popen([sys.executable, "-c", HANGS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield Whereabouts("here", process.pid, int(process.stdout.readline()))
    process.kill()
    process.wait()


def test_a_process_that_hangs_in_c_tells_where_each_time(hanging: Any) -> None:
    from rlctl.backends.ray.stacks import read

    for _ in range(2):
        told = read({"trainer rank 3": hanging})["trainer rank 3"]
        assert told.count("waits_for_another_rank") == 1


def test_a_process_that_is_stopped_is_said_to_be_silent(hanging: Any) -> None:
    from rlctl.backends.ray.stacks import read

    os.kill(hanging.pid, signal.SIGSTOP)
    assert read({"a": hanging}) == {"a": "nothing written within 2 s"}


def test_a_process_that_is_gone_is_said_to_be(hanging: Any) -> None:
    from rlctl.backends.ray.stacks import read

    os.kill(hanging.pid, signal.SIGKILL)
    os.waitpid(hanging.pid, 0)
    assert read({"a": hanging})["a"].startswith("not to be had: No such")
