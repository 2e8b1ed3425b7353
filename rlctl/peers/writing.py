"""The translation as TOML for `--config` or `--preset`: each line with the peer's setting beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlctl.peers.findings import Translation
from rlctl.toml_text import key_text, value_text


def toml(translation: Translation) -> str:
    """The settings in rlctl's own order, tables after the values that have none."""
    head = [
        f"# From a config of {translation.peer} (defaults of {translation.peer} {translation.version}).",
        "# Use it as `--preset FILE`: as `--config FILE` it lies over a preset, whose values fill what is not here.",
    ]
    body = list(_tables(translation))
    return "\n".join([*head, *(body or ["", "# rlctl's defaults say the same."])]) + "\n"


def _tables(translation: Translation) -> Iterator[str]:
    tables: dict[str, dict[str, Any]] = {}
    for name in sorted(translation.settings, key=_place):
        table, _, key = name.rpartition(".")
        tables.setdefault(table, {})[key] = translation.settings[name]
    for table, values in sorted(tables.items(), key=lambda item: bool(item[0])):
        yield ""
        if table:
            yield f"[{'.'.join(map(key_text, table.split('.')))}]"
        yield from _lines(table, values, translation.comments)


def _lines(table: str, values: Mapping[str, Any], comments: Mapping[str, str]) -> Iterator[str]:
    for key, value in values.items():
        comment = comments.get(f"{table}.{key}" if table else key, "")
        yield f"{key_text(key)} = {value_text(value)}" + (f"  # {_one_line(comment)}" if comment else "")


def _one_line(text: str) -> str:
    """A comment of TOML ends with its line and holds no control characters."""
    return "".join(character if character.isprintable() else " " for character in text)[:160]


def _place(name: str) -> tuple[int, ...]:
    """Where rlctl declares the setting, table by table, so that the file reads like `config show`."""
    from rlctl.settings import Settings
    from rlctl.settings_tree import fields

    place: list[int] = []
    block: Any = Settings
    for key in name.split("."):
        names = list(fields(block)) if hasattr(block, "model_fields") else []
        place.append(names.index(key) if key in names else 999)
        block = fields(block).get(key) if hasattr(block, "model_fields") else None
    return tuple(place)
