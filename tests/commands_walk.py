"""Every command of the command line, found by walking the app, so that a new one is looked at unasked."""

from __future__ import annotations

import shlex
from typing import Any

from typer.main import get_command

from rlctl.cli import app
from rlctl.commands.helptext import commands

PROGRAM = get_command(app)
COMMANDS = {words: command for words, command in commands(app).items() if not hasattr(command, "commands")}
GROUPS = {words: command for words, command in commands(app).items() if hasattr(command, "commands")}


def examples(command: Any) -> list[str]:
    """The lines beneath "Example:" at the end of a command's help."""
    lines = (command.epilog or "").splitlines()
    return [line.strip() for line in lines if line.strip().startswith("rlctl")]


def words(example: str) -> list[str]:
    program, *rest = shlex.split(example)
    assert program == "rlctl"
    return rest
