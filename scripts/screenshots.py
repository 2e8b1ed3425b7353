"""Screenshots of the live view for the docs: `rlctl train` in tmux at two sizes, its screens saved as SVG.

    python scripts/screenshots.py [--steps 12] [--at 8] [--prompts 32] [--into docs/images]

Needs tmux. Each picture is the screen as tmux has it when step `--at` is done and the next one is running.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
SIZES = [(80, 24), (160, 45)]
LONGEST_S = 1800.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--at", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=32, help="problems a step; fewer on a slow machine")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    for columns, lines in SIZES:
        screen = screen_of_a_run(columns, lines, options=options)
        path = options.into / f"live-view-{columns}.svg"
        path.write_text(drawn(screen, columns), encoding="utf-8")
        print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


def screen_of_a_run(columns: int, lines: int, *, options: argparse.Namespace) -> str:
    """The screen of a run, with its colours, while the step after `--at` runs."""
    train = [sys.executable, "-m", "rlctl", "train", "--preset", "gsm8k-grpo", "--variant", "embedded"]
    train += ["--name", "sums", "--steps", str(options.steps), "--set", f"trainer.train_batch_size={options.prompts}"]
    with tempfile.TemporaryDirectory() as folder:
        tmux = ["tmux", "-L", f"rlctl-screenshots-{os.getpid()}", "-f", os.devnull]
        start = f"cd {shlex.quote(folder)} && PYTHONPATH={shlex.quote(str(ROOT))} {shlex.join(train)}; sleep 60"
        subprocess.run([*tmux, "new-session", "-d", "-x", str(columns), "-y", str(lines), start], check=True)
        try:
            doing = rf"step {options.at}/{options.steps} .*\n.*step {options.at + 1}: (sample|update)"
            return _awaited(tmux, re.compile(doing))
        finally:
            subprocess.run([*tmux, "kill-server"], check=True)


def _awaited(tmux: list[str], wanted: re.Pattern[str]) -> str:
    """The screen as soon as it shows that."""
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline:
        screen = subprocess.run([*tmux, "capture-pane", "-p", "-e"], capture_output=True, text=True, check=True).stdout
        if wanted.search(Text.from_ansi(screen).plain):
            return screen
        time.sleep(0.2)
    raise SystemExit(f"never seen: {wanted.pattern}\n{screen}")


def drawn(screen: str, columns: int) -> str:
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    for line in screen.rstrip("\n").split("\n"):
        console.print(Text.from_ansi(line), no_wrap=True, crop=True)
    return console.export_svg(title=f"rlctl train, {columns} columns", unique_id=f"live-{columns}")


if __name__ == "__main__":
    main()
