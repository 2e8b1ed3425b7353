"""Outputs in the documentation are printed by the commands above them: this runs those and writes, or compares.

    python scripts/docs.py                  run what takes seconds, write the outputs into the pages
    python scripts/docs.py --check          the same, but say which outputs are stale (exit code 1); CI does this
    python scripts/docs.py --slow PAGE...   run what takes minutes, on this machine, which is named below each block

The convention, in README.md, CONTRIBUTING.md and docs/: a block fenced as ```console is a session. Its lines that
begin with `$ ` are run by bash, one after the other; what they print stands below each. A comment above may say more:

    <!-- console: slow -->          takes minutes: left alone unless --slow is given
    <!-- console: exit 4 -->        the exit code that every command of it ends with; else it must be 0
    <!-- console: keep 8 4 -->      of a longer output the first 8 and the last 4 lines, with ... between
    <!-- file: my_module.py -->     above any fenced block: its text is that file, in the folder of the page's sessions

All sessions of a page share an empty folder. Terminals are 100 columns wide and have no colours, no GPU and no network.
What differs from one machine and hour to another is compared by its shape only: see MASKS.
"""

from __future__ import annotations

import argparse
import difflib
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
MASKS = [
    (r"\d{4}-?\d\d-?\d\d[-T ]\d\d:?\d\d:?\d\d", "TIME"),
    (rf"\b{NUMBER} ?(ns|µs|ms|s|min|h|B|kB|MB|MiB|GB|GiB|TiB|tok/s|[GT]FLOP/s)\b", r"N \1"),
    (r"(?<![\w.])\d+\.\d+\.\d+[\w.+]*", "VERSION"),
    (r"(?<!\w)(?:/[\w.+-]+){2,}", "PATH"),
    (r"https?://127\.0\.0\.1:\d+", "ADDRESS"),
    (r" {2,}", "  "),
]
"""What is compared by shape: times and dates, numbers with a unit of time, memory or speed, versions, absolute paths,
and the width of the columns they stand in. All other numbers, percentages too, must be the same."""

FENCE = re.compile(
    r"(?P<told>(?:<!-- (?:console|file): [^\n]* -->\n\n?)*)"
    r"(?P<fence>`{3,})(?P<language>\w+)\n(?P<text>.*?)^(?P=fence)\n"
    r"(?P<made>(?:\nMade on [^\n]*\n)?)",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Told:
    """What the comments above a block say of it."""

    slow: bool
    exit_code: int
    keep: tuple[int, int] | None
    file: str | None


class Failed(Exception):
    """A command of a page did not end as it should."""


def main() -> int:
    options = _options()
    pages = [Path(page).resolve() for page in options.pages] or _pages()
    with ThreadPoolExecutor(1 if options.slow else 2) as pool:
        outcomes = list(pool.map(lambda page: _told_of(page, check=options.check, slow=options.slow), pages))
    lines = [line for outcome in outcomes for line in outcome]
    print("\n".join(lines) or f"{len(pages)} pages: every output is what its command prints")
    return 1 if any(options.check or ": failed: " in line for line in lines) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write the outputs of commands into the documentation, or check them.")
    parser.add_argument("pages", nargs="*", help="Markdown files; all of README.md, CONTRIBUTING.md and docs/ else")
    parser.add_argument("--check", action="store_true", help="say what is stale, write nothing")
    parser.add_argument("--slow", action="store_true", help="run the blocks that take minutes, too")
    return parser.parse_args()


def _pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def _told_of(page: Path, *, check: bool, slow: bool) -> list[str]:
    """Refresh a page; returns what there is to say: outputs that were stale, and commands that failed."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
    try:
        fresh = refreshed(text, slow=slow)
    except Failed as failure:
        return [f"{name}: failed: {failure}"]
    if fresh == text or (check and masked(fresh) == masked(text)):
        return []
    if not check:
        page.write_text(fresh, encoding="utf-8")
        return [f"{name}: written"]
    old, new = masked(text).splitlines(), masked(fresh).splitlines()
    difference = list(difflib.unified_diff(old, new, "in the page", "printed now", lineterm="", n=2))
    return [f"{name}: stale; `python scripts/docs.py {name}` writes it anew:", *(f"    {line}" for line in difference)]


def masked(text: str) -> str:
    """A page with all that may differ replaced in its sessions, and nothing else."""

    def in_session(block: re.Match[str]) -> str:
        found = block[0]
        if block["language"] == "console":
            for pattern, shape in MASKS:
                found = re.sub(pattern, shape, found)
        return found

    return FENCE.sub(in_session, text)


def refreshed(text: str, *, slow: bool) -> str:
    """A page with what its sessions print now. Raises Failed."""
    with tempfile.TemporaryDirectory(prefix="rlctl-docs-") as folder:
        session = Session(Path(folder).resolve())

        def block(found: re.Match[str]) -> str:
            told = _read(found["told"])
            if told.file is not None:
                session.write(told.file, found["text"])
            if found["language"] != "console" or (told.slow and not slow):
                return found[0]
            made = f"\nMade on {machine()}.\n" if told.slow else ""
            printed = "".join(session.run(found["text"], told))
            if re.search(rf"^{found['fence']}", printed, re.MULTILINE):
                raise Failed(f"what is printed would end the block; fence it with {found['fence']}` instead")
            return f"{found['told']}{found['fence']}console\n{printed}{found['fence']}\n{made}"

        return FENCE.sub(block, text)


def _read(comments: str) -> Told:
    said = " ".join(re.findall(r"<!-- console: (.*) -->", comments))
    exit_code = re.search(r"\bexit (\d+)", said)
    keep = re.search(r"\bkeep (\d+) (\d+)", said)
    file = re.search(r"<!-- file: (.*) -->", comments)
    return Told(
        "slow" in said.split(),
        int(exit_code[1]) if exit_code else 0,
        (int(keep[1]), int(keep[2])) if keep else None,
        file[1] if file else None,
    )


class Session:
    """The folder of a page, and the environment in which its commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "here"
        binaries = folder / "bin"
        for made in (self.folder, binaries, folder / "home"):
            made.mkdir()
        program = binaries / "rlctl"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rlctl "$@"\n')
        program.chmod(0o755)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("RLCTL_", "PYTEST_"))}
        self.environ = kept | {
            "PATH": f"{binaries}:{kept['PATH']}", "HOME": str(folder / "home"),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'examples/plugin'}",
            "RLCTL_CACHE_DIR": str(folder / "cache"), "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "TZ": "UTC",
            "LC_ALL": "C.UTF-8", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore",
        }  # fmt: skip

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, text: str, told: Told) -> Iterator[str]:
        """The lines of a session, each command with what it prints now."""
        for command in commands_of(text):
            yield f"$ {command}\n"
            result = subprocess.run(
                ["bash", "-o", "pipefail", "-c", command], cwd=self.folder, env=self.environ, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            if result.returncode not in (told.exit_code, 141):  # 141: `| head` closed the pipe
                raise Failed(f"`{command}` ended with {result.returncode}, not {told.exit_code}:\n{result.stdout}")
            yield from _cut(self.without_places(result.stdout).splitlines(keepends=True), told.keep)

    def without_places(self, printed: str) -> str:
        """No page tells where on this machine something was: only what is below the page's own folder."""
        printed = printed.replace(f"{self.folder}/", "").replace(str(self.folder), ".")
        for place in (sys.prefix, str(ROOT), str(self.folder.parent)):
            printed = printed.replace(place, "...")
        return "\n".join(line.rstrip() for line in printed.split("\n"))


def commands_of(text: str) -> list[str]:
    """Commands of a session, with the lines on which they go on after a backslash."""
    found: list[str] = []
    for line in text.splitlines():
        if found and found[-1].endswith("\\"):
            found[-1] += f"\n{line}"
        elif line.startswith("$ "):
            found.append(line.removeprefix("$ "))
    return found


def _cut(lines: Sequence[str], keep: tuple[int, int] | None) -> Sequence[str]:
    if keep is None or len(lines) <= sum(keep) + 1:
        return lines
    first, last = keep
    return [*lines[:first], "...\n", *lines[len(lines) - last :]]


def machine() -> str:
    """What a slow block was made on; a load of more than its cores says that others took their share of the time."""
    import torch

    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if sys.platform == "linux" else []
    processor = re.sub(r"\s*\(R\)|\s*\(TM\)|\s*@.*", "", names[0]) if names else platform.machine()
    software = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{os.cpu_count()} cores of {processor} with a load of {os.getloadavg()[0]:.0f} at the end, {software}"


if __name__ == "__main__":
    sys.exit(main())
