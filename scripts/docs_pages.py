"""Pages of the documentation that are made from the program itself: its commands, settings and presets."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from typer.main import get_command

from rlctl import presets, settings_tree
from rlctl.backends import registry
from rlctl.cli import app
from rlctl.commands.helptext import commands, help_text
from rlctl.settings import Settings

WORDS = {
    str: "text", int: "whole number", float: "number", bool: "true or false", dict: "table", Any: "anything",
    types.NoneType: "null", SecretStr: "secret",
}  # fmt: skip
BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤", "min_length": "at least", "max_length": "at most"}


def command_page() -> str:
    """The help of the program, and of every command in it."""
    lines = ["# Commands", "", "What `--help` prints of each.", "", *_fenced("text", _help(get_command(app), ""))]
    for words, command in commands(app).items():
        lines += [f"## rlctl {words}", "", *_fenced("text", _help(command, words))]
    return "\n".join(lines)


def _help(command: Any, words: str) -> str:
    return help_text(command, words, width=80)


def settings_page() -> str:
    """Every setting: its type, its default, and the documentation of its field."""
    lines = [
        "# Settings",
        "",
        "Each heading is a table of TOML. Typed: `--set trainer.lr=5e-7`; in the environment: `RLCTL_TRAINER__LR`.",
        "",
    ]
    lines += _block(Settings, "")
    for name in registry.names():
        block = settings_tree.backend_block(name)
        if block is not None:
            lines += _block(block, f"remote_backend.{name}")
    return "\n".join(lines)


def _block(block: type[BaseModel], dotted: str) -> Iterator[str]:
    """The table of a block's own settings, then those of the blocks in it."""
    plain = {name: info for name, info in block.model_fields.items() if not settings_tree.is_block(info.annotation)}
    plain.pop("remote_backend", None)
    if plain:
        yield from (f"## {dotted}" if dotted else "## Without a table", "")
        yield from ("| setting | type | default | |", "|---|---|---|---|")
        for name, info in plain.items():
            cells = (f"`{name}`", _kind(info.annotation, info.metadata), f"`{_default(info)}`", info.description or "")
            yield "| " + " | ".join(_cell(cell) for cell in cells) + " |"
        yield ""
    for name, info in block.model_fields.items():
        item = settings_tree.item_block(info.annotation)
        if item is not None:
            yield from _block(item, f"{dotted}.{name}[]".lstrip("."))
        if settings_tree.is_block(info.annotation):
            yield from _block(info.annotation, f"{dotted}.{name}".lstrip("."))  # type: ignore[arg-type]


def _kind(annotation: Any, metadata: list[Any]) -> str:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        found = [one for extra in inside[1:] for one in (extra.metadata if isinstance(extra, FieldInfo) else [extra])]
        return _kind(inside[0], [*found, *metadata])
    if origin in (Union, types.UnionType):
        return " or ".join(_kind(one, [] if one is types.NoneType else metadata) for one in inside)
    if origin is Literal:
        return ", ".join(f"`{_toml(value)}`" for value in inside)
    return " ".join([_word(annotation, origin, inside), *_bounds(metadata)])


def _word(annotation: Any, origin: Any, inside: tuple[Any, ...]) -> str:
    if origin in (list, tuple):
        kinds = dict.fromkeys(_kind(one, []) for one in inside if one is not Ellipsis)
        return f"list of {' and '.join(kinds)}"
    if settings_tree.is_block(annotation):
        return "table"
    return WORDS.get(origin or annotation, getattr(annotation, "__name__", str(annotation)))


def _bounds(metadata: list[Any]) -> Iterator[str]:
    for one in metadata:
        for name, sign in BOUNDS.items():
            # A bound this high only keeps counters from overflowing.
            if getattr(one, name, None) is not None and getattr(one, name) < 2**31:
                yield f"{sign} {getattr(one, name):,}"


def _default(info: FieldInfo) -> str:
    return "required" if info.is_required() else _toml(info.get_default(call_default_factory=True))


def _toml(value: Any) -> str:
    simple: dict[type, Callable[[Any], str]] = {
        bool: lambda it: str(it).lower(), str: lambda it: f'"{it}"', types.NoneType: lambda it: "null",
    }  # fmt: skip
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return simple.get(type(value), str)(value)


def _cell(text: str) -> str:
    """Text on one line, with what would end the cell escaped; between backticks nothing would."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part.replace("|", "\\|") if at % 2 == 0 else part for at, part in enumerate(parts))


def preset_page() -> str:
    """Every preset: what it is, its variants, and its file."""
    lines = [
        "# Presets",
        "",
        "`rlctl presets show NAME > mine.toml`, change it, and `rlctl train --preset mine.toml`.",
        "",
    ]
    for name, path in presets.available().items():
        preset = presets.read(path)
        lines += [f"## {name}", "", preset.summary, ""]
        if preset.variants:
            lines += ["| variant | | |", "|---|---|---|"]
            for variant in preset.variants:
                only = "only by name" if variant.by_name_only else "chosen where it fits"
                lines.append(f"| `{variant.name}` | {_cell(variant.summary)} | {only} |")
            lines.append("")
        lines += _fenced("toml", path.read_text(encoding="utf-8").rstrip())
    return "\n".join(lines)


def _fenced(language: str, text: str) -> list[str]:
    return [f"````{language}", text, "````", ""]
