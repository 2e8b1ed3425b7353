"""Every command of the command line, found by walking the app, so that a new one is looked at unasked."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from rlctl.cli import app

PROGRAM = get_command(app)


def walk(command: Any = PROGRAM, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(("config", "show"), command) of every visible command and group, the program itself left out."""
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield (*above, name), below
            yield from walk(below, (*above, name))


COMMANDS = {" ".join(words): command for words, command in walk() if not hasattr(command, "commands")}
GROUPS = {" ".join(words): command for words, command in walk() if hasattr(command, "commands")}


def examples(command: Any) -> list[str]:
    """The lines beneath "Example:" at the end of a command's help."""
    lines = (command.epilog or "").splitlines()
    return [line.strip() for line in lines if line.strip().startswith("rlctl")]


def words(example: str) -> list[str]:
    program, *rest = shlex.split(example)
    assert program == "rlctl"
    return rest
