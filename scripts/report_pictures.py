"""Look at a report in a real browser: report_pictures.py REPORT.html FOLDER.

Opens the file in headless Chromium (Debian: apt-get install chromium), checks that its own script ran under the page's
policy and that nothing was loaded, and takes pictures at the width of a desk and of a phone. docs/runs.md has some of
them. Exit code 1 when something is wrong.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = {"desk": (1280, 2400), "phone": (400, 2400)}


def main() -> int:
    report, folder = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    dom, complaints = _open(report, "--dump-dom", "--enable-logging=stderr")
    wrong = [line for line in complaints.splitlines() if re.search(r"CONSOLE|Refused to|net::ERR", line)]
    if not re.search(r'<p class="filter">', dom):
        wrong.append("the page's script did not run: the filter of the settings is hidden")
    for name, (width, height) in SIZES.items():
        _open(report, f"--screenshot={folder / name}.png", f"--window-size={width},{height}", "--hide-scrollbars")
        print(folder / f"{name}.png")
    print("\n".join(wrong) or "the script ran, nothing was refused")
    return bool(wrong)


def _open(report: Path, *options: str) -> tuple[str, str]:
    """What Chromium says on stdout and on stderr."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no chromium on the PATH: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", *options]
        done = subprocess.run([*command, report.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


if __name__ == "__main__":
    sys.exit(main())
