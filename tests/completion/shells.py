"""A real shell on a pseudo-terminal, in which keys are pressed."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
SET_UP = {
    "bash": "bind 'set enable-bracketed-paste off'; source <(rlctl completion bash)",
    "zsh": "unsetopt prompt_cr; autoload -Uz compinit; compinit -u -D; source <(rlctl completion zsh)",
    "fish": "rlctl completion fish | source",
}
LONGEST_S = 60.0


class Shell:
    """`become(line)` gives the words that a line has after the key for completion."""

    def __init__(self, name: str, *, pid: int, master: int) -> None:
        self.name, self.pid, self.master, self.seen, self.lines = name, pid, master, "", 0
        self.run(SET_UP[name])

    def become(self, line: str, *, keys: str = "\t") -> list[str]:
        self.type(line)
        self.type(keys)
        self.quiet()
        # To the beginning of the line, so that the shell itself takes the words apart.
        self.lines += 1
        self.type(f"\x01printf 'w{self.lines}<%s>\\n' \x05\r")
        self.until(f"w{self.lines}<rlctl>")
        self.quiet()
        found = re.findall(rf"w{self.lines}<([^\r\n]*)>\r?$", plain(self.seen), re.MULTILINE)
        return [word for word in found if word != "%s"]

    def run(self, command: str) -> None:
        self.lines += 1
        self.type(f"{command}; printf 'done%s.\\n' {self.lines}\r")
        self.until(f"done{self.lines}.")
        self.quiet()

    def listed(self, line: str) -> str:
        """What is shown when the key is pressed again and again; the line is thrown away."""
        self.quiet()
        before = len(self.seen)
        self.type(line)
        for _ in range(3):  # to what all have in common, to a bell, to the list
            self.type("\t")
            self.quiet()
        shown = plain(self.seen[before:])
        self.type("\x15\x03")
        self.until_it_answers()
        return shown

    def until_it_answers(self) -> None:
        """What is typed while the shell still deals with Ctrl-C may be lost, so it is asked again and again."""
        self.lines += 1
        answer, end = f"here{self.lines}.", time.monotonic() + LONGEST_S
        while answer not in plain(self.seen):
            assert time.monotonic() < end, f"{self.name} does not answer; it showed:\n{plain(self.seen)[-2000:]}"
            self.type(f"\x15printf 'here%s.\\n' {self.lines}\r")
            soon = time.monotonic() + 2.0
            while answer not in plain(self.seen) and time.monotonic() < soon:
                self._read(0.1)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def quiet(self, seconds: float = 0.15) -> None:
        """Read until nothing comes for a while, longer while something computes."""
        busy = time.monotonic() + LONGEST_S
        while time.monotonic() < busy and (self._read(seconds) or self._children()):
            pass

    def until(self, text: str) -> None:
        end = time.monotonic() + LONGEST_S
        while text not in plain(self.seen):
            assert time.monotonic() < end, f"{self.name} did not print {text!r}; it showed:\n{plain(self.seen)[-2000:]}"
            self._read(0.1)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return False
        text = os.read(self.master, 65536).decode(errors="replace")
        self.seen += text
        if "\x1b[c" in text:  # fish asks what terminal this is, and waits
            self.type("\x1b[?62c")
        return True

    def _children(self) -> bool:
        """Whether the shell waits for an rlctl that computes an answer."""
        return any(b"__complete" in command for command in _command_lines(self.pid))


def _command_lines(session: int) -> Iterator[bytes]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                yield (folder / "cmdline").read_bytes()


def plain(text: str) -> str:
    """Without what moves the cursor and colours."""
    return re.sub(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>])|[\x07\x0f]", "", text)


@contextlib.contextmanager
def shell(name: str, *, folder: Path, binaries: Path, environ: Mapping[str, str] | None = None) -> Iterator[Shell]:
    """A shell that stands in `folder` and finds `rlctl` in `binaries`."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(folder)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RLCTL_")}
        path = f"{binaries}:{os.environ['PATH']}"
        terminal = {"TERM": "xterm", "COLUMNS": "200", "PS1": "$ ", "HOME": str(folder), "PATH": path}
        os.execvpe(START[name][0], START[name], {**kept, **terminal, **(environ or {})})
    try:
        yield Shell(name, pid=pid, master=master)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(master)


def put_rlctl_on_path(binaries: Path) -> Path:
    binaries.mkdir()
    program = binaries / "rlctl"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m rlctl "$@"\n')
    program.chmod(0o755)
    return binaries
