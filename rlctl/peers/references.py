"""References inside values: `${a.b}` to another setting, `${oc.select:a.b,default}`, `$X` and `${X:-default}`.

Only what stands in the file, or was given with --var, is put in; the environment of this machine is never asked,
since the peer ran in another. What cannot be resolved makes the value Unresolved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlctl.peers.entries import Entry, Unresolved, scalar

EXPRESSION = "<expr>"
"""How configs that were taken out of a Python program mark a value that was an expression there."""

_BRACED = re.compile(r"\$\{([^${}]*)\}")
_LOOSE = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#])")
_SUBSTITUTED = re.compile(r"\$\(|`")
_DEPTH = 20


def resolved(entries: list[Entry], variables: Mapping[str, str], *, loose: bool) -> list[Entry]:
    """The entries with every reference put in. `loose` also reads `$NAME` without braces, as shells do."""
    values = {entry.key: entry.value for entry in entries}
    return [replace(entry, value=_value(entry.value, entry.key, values, variables, loose=loose)) for entry in entries]


def _value(
    value: Any, key: str, values: Mapping[str, Any], variables: Mapping[str, str], *, loose: bool, depth: int = 0
) -> Any:
    if isinstance(value, list):
        return _of_list([_value(v, key, values, variables, loose=loose, depth=depth) for v in value], value)
    if not isinstance(value, str) or not ("$" in value or "`" in value or value.startswith(EXPRESSION)):
        return value
    if value.startswith(EXPRESSION):
        return Unresolved(value.removeprefix(EXPRESSION).strip(), (value.removeprefix(EXPRESSION).strip(),))
    if depth > _DEPTH:
        return Unresolved(value, (value,))
    whole = _BRACED.fullmatch(value)
    if whole:
        found = _referred(whole[1], key, values, variables)
        return found if _is_missing(found) else _value(found, key, values, variables, loose=loose, depth=depth + 1)
    missing: list[str] = []

    def put_in(match: re.Match[str]) -> str:
        found = _referred(match[1], key, values, variables)
        if _is_missing(found) or isinstance(found, list | dict):
            missing.append(match[0])
            return "\0" + match[0][1:]
        return str(found)

    text = _BRACED.sub(put_in, value)
    text = _LOOSE.sub(put_in, text) if loose else text
    if loose and (hit := _SUBSTITUTED.search(text)):
        missing.append(text[hit.start() :])
    if missing:
        return Unresolved(value, tuple(dict.fromkeys(missing)))
    if text == value:
        return value
    return _value(scalar(text), key, values, variables, loose=loose, depth=depth + 1)


def _of_list(items: list[Any], written: list[Any]) -> Any:
    names = [name for item in items if isinstance(item, Unresolved) for name in item.names]
    return Unresolved(", ".join(map(str, written)), tuple(dict.fromkeys(names))) if names else items


def _is_missing(found: Any) -> bool:
    return isinstance(found, Unresolved)


def _referred(inside: str, key: str, values: Mapping[str, Any], variables: Mapping[str, str]) -> Any:
    """What `${inside}` of the value at `key` stands for; Unresolved when it is not in the file."""
    name, colon, rest = inside.partition(":")
    written = "${" + inside + "}"
    if colon and name == "oc.env":
        # Its default, too, holds only where the variable is not set: on the machine of the peer's run nobody knows.
        variable = rest.partition(",")[0].strip()
        return variables[variable] if variable in variables else Unresolved(written, (f"${variable}",))
    if colon and name == "oc.select":
        target, comma, default = rest.partition(",")
        return values.get(target.strip(), scalar(default.strip()) if comma else Unresolved(written, (written,)))
    if colon and rest.startswith("-"):
        return variables.get(name, rest[1:])
    if inside in variables:
        return variables[inside]
    target = _relative(inside, key)
    return values[target] if target in values else Unresolved(written, (written,))


def _relative(inside: str, key: str) -> str:
    """OmegaConf's `${.x}` is beside the value, `${..x}` one table up."""
    dots = len(inside) - len(inside.lstrip("."))
    if not dots:
        return inside
    parents = key.split(".")[:-dots]
    return ".".join([*parents, inside[dots:]])
