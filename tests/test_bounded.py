"""A time limit of a program holds: for one that SIGKILL does not end, and for one whose children keep its output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlctl import bounded

LONG_S = 120.0
"""How long the programs here would go on; a test that had to wait for one would take that long."""

UNENDING = """
# Is dead after SIGKILL and yet not gone, as a program in a driver's system call: whoever traces it is told of its end
# first, and that process, in a session of its own, does not ask.
import ctypes, os, sys, time
SEIZE, SET_PTRACER = 0x4206, 0x59616D61
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
told, tell = os.pipe()
tracer = os.fork()
if not tracer:
    os.setsid()
    time.sleep(0.2)
    os.write(tell, b"%d" % libc.ptrace(SEIZE, os.getppid(), None, None))
    time.sleep(float(sys.argv[2]))
    os._exit(0)
libc.prctl(SET_PTRACER, tracer, 0, 0, 0)
seized = os.read(told, 8)
open(sys.argv[1], "w").write(f"{tracer} {seized.decode()}")
time.sleep(float(sys.argv[2]))
"""


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int) -> bool:
    until = time.monotonic() + 30
    while is_there(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not is_there(pid)


def test_what_a_program_says_and_its_exit_code_are_given() -> None:
    done = bounded.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=LONG_S)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_more_output_than_a_pipe_holds_is_read() -> None:
    done = bounded.run([sys.executable, "-c", "print('x' * 1_000_000)"], timeout_s=LONG_S)
    assert len(done.stdout) == 1_000_001


def test_a_program_that_cannot_be_started_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        bounded.run(["/no/such/program"], timeout_s=LONG_S)


def test_a_child_that_keeps_the_output_open_keeps_nobody_waiting() -> None:
    begun = time.monotonic()
    done = bounded.run(["sh", "-c", f"sleep {LONG_S} & echo $!; exit 0"], timeout_s=LONG_S)
    assert time.monotonic() - begun < LONG_S
    os.kill(int(done.stdout), signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_at_the_limit_a_program_ends_with_its_children_whatever_they_ignore(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = f"trap '' TERM HUP INT; (trap '' TERM HUP INT; sleep {LONG_S}; :) & echo $! $$ > {pids}; wait"
    with pytest.raises(subprocess.TimeoutExpired):
        bounded.run(["sh", "-c", program], timeout_s=1.0)
    assert all(gone(int(pid)) for pid in pids.read_text().split())


@pytest.mark.skipif(sys.platform != "linux", reason="uses ptrace as Linux has it")
def test_a_program_that_sigkill_does_not_end_is_given_up(tmp_path: Path) -> None:
    told = tmp_path / "told"
    with pytest.raises(subprocess.TimeoutExpired):
        bounded.run([sys.executable, "-c", UNENDING, str(told), str(LONG_S)], timeout_s=5.0)
    tracer, seized = told.read_text().split()
    try:
        if seized != "0":
            pytest.skip("this machine does not let a process trace another")
        assert is_there(int(tracer))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(tracer), signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_ends_leaves_no_program_behind(tmp_path: Path) -> None:
    code = f"""
import threading, time
from pathlib import Path
from rlctl import bounded
command = ["sh", "-c", "echo $$ > pid; sleep {LONG_S}"]
threading.Thread(target=bounded.run, args=(command,), kwargs={{"timeout_s": {LONG_S}}}, daemon=True).start()
while not (Path("pid").exists() and Path("pid").read_text()):
    time.sleep(0.05)
"""
    root = Path(__file__).resolve().parents[1]
    environ = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environ, timeout=LONG_S)
    assert gone(int((tmp_path / "pid").read_text()))
