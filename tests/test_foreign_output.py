"""Only results are on stdout."""

from __future__ import annotations

import subprocess
import sys


def test_what_others_print_is_on_stderr_and_results_stay_on_stdout() -> None:
    code = """
import os, subprocess, sys
from rlctl.foreign_output import to_stderr
print("before")
with to_stderr():
    print("python")
    os.write(1, b"system\\n")
    subprocess.run([sys.executable, "-c", "print('child')"])
print("after")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "before\nafter\n"
    assert sorted(done.stderr.split()) == ["child", "python", "system"]
