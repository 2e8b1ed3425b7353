"""What `--help` prints: a docstring, with the example that ends it unwrapped beneath the options.

A docstring is the one source of a command's help: what it does, what it reads and writes, its exit codes and, as its
last line, "Example: rlctl ...", which works as written (`tests/test_help.py` tries each).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.models import CommandInfo, TyperInfo

EXAMPLE = re.compile(r"(?:(.*?)\s*\bExample:)?\s*\$?\s*`?(rlctl(?: .*?)?)`?")
UNWRAPPED = "\b"
"""What Typer's help takes for "leave the lines of this paragraph as they are"."""

NARROW = 56
"""Columns below which the meaning of an option stands under it: beside it, it would be a column of single words."""


def context_settings(columns: int) -> dict[str, Any]:
    """Of the program on a terminal of that width.

    Left to itself a help text takes 50 columns on a narrower one, which then breaks its lines again.
    """
    return {"help_option_names": ["-h", "--help"], "terminal_width": max(30, min(columns, 80) - 2)}


def finish(app: typer.Typer) -> list[str]:
    """Put the example of each command at the end of its help, and those of its commands at the end of a group's.

    Returns all of them.
    """
    shown: list[str] = []
    app.info.cls = _Group
    if app.registered_callback is not None:
        shown += _move(app.registered_callback)
    for command in app.registered_commands:
        command.cls = _Command
        shown += _move(command)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            below = finish(group.typer_instance)
            group.epilog = _epilog(below) if below else None
            shown += [] if group.hidden else below
    return shown


def commands(app: typer.Typer) -> dict[str, Any]:
    """Every visible command and group of the program by its words, "config show", as Typer makes them."""
    return dict(_below(get_command(app), ""))


def _below(group: Any, above: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if not command.hidden:
            yield f"{above}{name}", command
            if hasattr(command, "commands"):
                yield from _below(command, f"{above}{name} ")


def help_text(command: Any, words: str, *, width: int) -> str:
    """What `rlctl WORDS --help` prints on a terminal that is `width` columns wide, 80 at most."""
    name = f"rlctl {words}".strip()
    context = command.make_context(name, [], resilient_parsing=True, **context_settings(width))
    return str(command.get_help(context))


def _move(command: CommandInfo | TyperInfo) -> list[str]:
    text, example = split((command.callback and command.callback.__doc__) or "")
    if example is None:
        return []
    command.help, command.epilog = text, _epilog([example])
    return [example]


def split(docstring: str) -> tuple[str, str | None]:
    """The text of a docstring without its example, and the example; None where its last line is no command."""
    lines = inspect.cleandoc(docstring).splitlines()
    found = EXAMPLE.fullmatch(lines[-1].strip()) if lines else None
    if found is None:
        return "\n".join(lines), None
    text = "\n".join([*lines[:-1], found[1] or ""]).rstrip()
    return text.removesuffix("Example:").rstrip(), found[2]


def _epilog(examples: list[str]) -> str:
    title = "Example:" if len(examples) == 1 else "Examples:"
    return "\n".join([UNWRAPPED, title, *(f"  {example}" for example in examples)])


class _Formatter(TyperCommand.context_class.formatter_class):  # type: ignore[name-defined,misc]  # Typer's own, wherever it is
    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl(rows, 6 if self.width < NARROW else col_max, col_spacing)


class _Context(TyperCommand.context_class):  # type: ignore[valid-type,misc]
    formatter_class = _Formatter


class _Command(TyperCommand):
    context_class = _Context

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            # Typer has pydantic read values, which begins so what validators say.
            error.message = error.message.removeprefix("Value error, ")
            raise


class _Group(TyperGroup):
    context_class = _Context
