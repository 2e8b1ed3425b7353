"""A command that is forked meets what it meets in an interpreter of its own (`tests/command_line.py`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import environment, fresh, rlctl, start

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or "FRESH_INTERPRETERS" in os.environ, reason="no command is forked"
)

PROBE = """
import os, signal, sys, threading
main = sys.modules["__main__"].__spec__.name
print(os.getcwd(), sys.path[0] == os.getcwd(), sys.argv, main, os.environ["COLUMNS"], "RLCTL_SEED" in os.environ)
print([str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)])
print([(s.encoding, s.errors, s.line_buffering, s.isatty(), s.seekable()) for s in (sys.stdout, sys.stderr)])
print(repr(sys.stdin.read()), sorted(os.listdir("/proc/self/fd")))
print(threading.active_count(), len(os.listdir("/proc/self/task")), file=sys.stderr)
"""

ENDS = {
    "at exit": "import atexit; atexit.register(print, 'the last')",
    "a thread": """
import threading
threading.Thread(target=lambda: (threading.main_thread().join(), print('late'))).start()
""",
    "a child": """
import os, subprocess
until_the_end, held = os.pipe()
subprocess.Popen(['sh', '-c', f'cat <&{until_the_end}; echo later'], pass_fds=[until_the_end])
""",
    "much": "import sys; sys.stdout.write('x' * 1_000_000); sys.stderr.write('y' * 1_000_000)",
    "a code": "import os; os._exit(7)",
    "a signal": "import os; os.kill(os.getpid(), 9)",
    "its group": "import os, signal; os.setpgid(0, 0) if os.getpgid(0) != os.getpid() else 0; os.killpg(0, 15)",
    "an interrupt": "raise KeyboardInterrupt",
    "an exit": "raise SystemExit('words')",
}


def test_it_is_given_the_same(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    alike(tmp_path)


def alike(folder: Path) -> None:
    """COLUMNS, because it is one of the few variables that no library reads when it is imported."""
    forked, own = (start("plugins", cwd=folder, RLCTL_PLUGINS="probe", COLUMNS="ü") for start in (rlctl, fresh))
    assert (forked.returncode, forked.stdout, forked.stderr) == (own.returncode, own.stdout, own.stderr)


@pytest.mark.parametrize("end", ENDS)
def test_it_ends_the_same(end: str, tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(ENDS[end])
    alike(tmp_path)


def test_what_libraries_read_when_they_are_imported_needs_an_interpreter(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text("import os, sys; print(os.getppid(), 'torch' in sys.modules)")
    mine = str(os.getpid())
    assert rlctl("plugins", cwd=tmp_path, RLCTL_PLUGINS="probe").stdout.split()[:2] != [mine, "False"]
    apart = rlctl("plugins", cwd=tmp_path, RLCTL_PLUGINS="probe", OMP_NUM_THREADS="3")
    assert apart.stdout.split()[:2] == [mine, "False"]


def test_one_that_runs_is_signalled_waited_for_and_heard(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    with start("plugins", cwd=tmp_path, environ={**environment(), "RLCTL_PLUGINS": "probe"}) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid == os.getsid(process.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == process.poll() == -signal.SIGTERM
    process.kill()  # which meets nobody
