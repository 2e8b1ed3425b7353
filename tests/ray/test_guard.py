"""What a guard does when the process it belongs to is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from rlctl.backends.ray.guard import Guard, descendants, start_time

OWNER = """
import os, subprocess, sys
from pathlib import Path
from rlctl.backends.ray.guard import Guard
folder = Path(sys.argv[1])
folder.mkdir()
(folder / "weights").write_text("x")
guard = Guard(folder)
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
guard.watch([child.pid])
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if start_time(pid) is None or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_after_kill_9_children_and_files_go(tmp_path: Path) -> None:
    owner = subprocess.run([sys.executable, "-c", OWNER, str(tmp_path / "f")], capture_output=True, text=True)
    assert owner.returncode == -9
    assert gone(int(owner.stdout))
    deadline = time.monotonic() + 60
    while (tmp_path / "f").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not (tmp_path / "f").exists()


def test_release_clears_up_before_it_returns(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    child = subprocess.Popen(["sleep", "60"])
    guard = Guard(tmp_path / "f")
    guard.watch([child.pid])
    guard.release()
    assert child.wait(60) == -9
    assert not (tmp_path / "f").exists()


def test_a_process_that_has_the_number_of_a_dead_one_is_left_alone(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    guard = Guard(tmp_path / "f")
    assert guard._starter.stdin is not None
    guard._starter.stdin.write(f"{child.pid} 1\n")
    guard.release()
    assert child.poll() is None
    child.kill()
    child.wait()


def test_descendants_are_found_at_any_depth() -> None:
    outer = subprocess.Popen(["sh", "-c", "sh -c 'sleep 60; true'; true"])
    time.sleep(0.3)
    below = descendants(outer.pid)
    assert len(below) == 2
    for pid in below:
        subprocess.run(["kill", "-9", str(pid)], check=False)
    outer.wait()
