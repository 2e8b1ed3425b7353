"""The sources of settings, each as one layer: a tree of values with the place each came from.

The environment is read here and not by pydantic-settings: its own source ignores a prefixed variable that it does not
know, guesses at the type of values in dict tables, and tells no origin.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from rlctl import presets
from rlctl.backends import registry
from rlctl.presets import Tree, did_you_mean
from rlctl.settings_tree import (
    PREFIX,
    Keys,
    field_type,
    fields,
    is_container,
    is_known,
    is_secret,
    is_table,
    item_block,
    leaves,
    nearest,
    variable_name,
)

if TYPE_CHECKING:  # only named here; settings_tree loads it
    from pydantic import BaseModel

NOT_SETTINGS = frozenset({"RLCTL_PLUGINS", "RLCTL_CACHE_DIR", "RLCTL_NO_KERNELS", "RLCTL_NO_AMX"})
"""Variables read elsewhere: plugin modules (registry), the cache folder (cache.py), and what the engine leaves out."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One source of settings. `origin` says where it is; `names` the exact place of single values."""

    origin: str
    values: Tree
    names: Mapping[str, str]

    def place(self, dotted: str) -> str:
        return self.names.get(dotted, self.origin)


def from_file(config: str | None) -> Layer:
    if config is None:
        return Layer("", {}, {})
    return Layer(config, with_nulls(presets.read_toml(Path(config))), {})


def with_nulls(tree: Tree, above: Keys = ()) -> Tree:
    """The tree with None for "null" where a setting may be left out: TOML has no null, and the shell's is the word."""
    result: Tree = {}
    for key, value in tree.items():
        keys = (*above, key)
        items = item_block(field_type(keys))
        if isinstance(value, dict):
            result[key] = with_nulls(value, keys)
        elif items is not None and isinstance(value, list):
            result[key] = [_item_with_nulls(item, items) for item in value]
        else:
            result[key] = _null(value, field_type(keys))
    return result


def _item_with_nulls(item: Any, block: type[BaseModel]) -> Any:
    types = fields(block)
    return {key: _null(value, types.get(key)) for key, value in item.items()} if isinstance(item, dict) else item


def _null(value: Any, annotation: Any) -> Any:
    return None if value == "null" and type(None) in get_args(annotation) else value


def from_environment(environ: Mapping[str, str], complaints: list[str]) -> Layer:
    values: Tree = {}
    names: dict[str, str] = {}
    for variable in sorted(environ):
        if not variable.upper().startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        keys = tuple(variable[len(PREFIX) :].lower().split("__"))
        keys = _spelled(keys)
        if field_type(keys) is None:
            complaints.append(f"{variable} is not a setting.{_table_variable(keys) or _nearest_variable(variable)}")
            continue
        twin = names.get(".".join(keys))
        if twin is not None:
            complaints.append(f"{variable} and {twin} are the same setting; keep one")
            continue
        names[".".join(keys)] = variable
        _assign(values, keys, environ[variable], variable, complaints)
    return Layer("environment", values, names)


def _spelled(keys: Keys) -> Keys:
    """The keys with a backend's name as it is registered: variables are upper case and have no dashes."""
    if len(keys) > 1 and keys[0] == "remote_backend":
        for name in registry.names():
            if name.lower().replace("-", "_") == keys[1]:
                return (keys[0], name, *keys[2:])
    return keys


def _table_variable(keys: Keys) -> str:
    """How to set a key of a free table, whose case a variable does not tell; "" for what is in none."""
    tables = [keys[:end] for end in range(1, len(keys)) if field_type(keys[:end]) is not None]
    return f" Write {variable_name(tables[-1])}='{{\"KEY\": VALUE}}'." if tables and is_known(keys) else ""


def _nearest_variable(variable: str) -> str:
    known = [variable_name(keys) for keys in leaves()] + sorted(NOT_SETTINGS)
    return did_you_mean(variable.upper(), known)


def from_options(assignments: Sequence[str], options: Mapping[str, tuple[str, Any]], complaints: list[str]) -> Layer:
    values: Tree = {}
    names: dict[str, str] = {}
    for assignment in assignments:
        dotted, equals, text = assignment.partition("=")
        dotted = dotted.strip()
        if not equals or not dotted:
            complaints.append(f"--set {assignment} is not KEY=VALUE; write --set trainer.lr=5e-7")
            continue
        keys = tuple(dotted.split("."))
        if not is_known(keys) or "" in keys:
            complaints.append(f"{dotted} (from --set) is not a setting.{nearest(keys)}")
            continue
        names[dotted] = f"--set {dotted}"
        _assign(values, keys, text, f"--set {dotted}", complaints)
    for dotted, (option, value) in options.items():
        names[dotted] = option
        _put(values, tuple(dotted.split(".")), value)
    return Layer("command line", values, names)


def _assign(values: Tree, keys: Keys, text: str, origin: str, complaints: list[str]) -> None:
    """Put `text`, read for the type of the setting `keys`, into the tree."""
    try:
        _put(values, keys, _read(text, field_type(keys)) if field_type(keys) is not None else _read_freely(text))
    except ValueError as error:
        value = "***" if is_secret(field_type(keys)) else shown(text)
        complaints.append(f"{'.'.join(keys)} = {value} (from {origin}) {error}")


def _read(text: str, annotation: Any) -> Any:
    """Text from a shell as the value of a setting: null, JSON or commas for lists and tables, else the text itself."""
    optional = type(None) in get_args(annotation)
    if text == "null" and optional:
        return None
    if optional and text.lower() in ("none", "nil", "~", ""):
        raise ValueError("is not how to leave it out; write null")
    if is_container(annotation):
        try:
            return json.loads(text)
        except ValueError:
            if is_table(annotation):
                raise ValueError('must be a JSON object, such as {"a": 1}') from None
            if text.lstrip().startswith("["):
                raise ValueError('is not a JSON list, such as ["a", "b"]') from None
            return [part.strip() for part in text.strip("() ").split(",")] if text.strip() else []
    # Text becomes a number by itself where a number is asked for, but not where one of some numbers is.
    return next((choice for choice in _choices(annotation) if str(choice) == text.strip()), text)


def _read_freely(text: str) -> Any:
    """Text from a shell as the value of a key whose type nobody has said: JSON where it is that, else the text."""
    if text.strip() in ("True", "False", "None"):
        raise ValueError(f"is Python; write {'null' if text.strip() == 'None' else text.strip().lower()}")
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text


def _choices(annotation: Any) -> list[Any]:
    """The values that a Literal allows, also inside a union."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def _put(values: Tree, keys: Keys, value: Any) -> None:
    for key in keys[:-1]:
        below = values.setdefault(key, {})
        if not isinstance(below, dict):
            return
        values = below
    values[keys[-1]] = value


def merged(layers: Sequence[Layer]) -> Tree:
    result: Tree = {}
    for layer in layers:
        result = _overlaid(result, layer.values)
    return result


def _overlaid(under: Tree, over: Tree) -> Tree:
    both = {key: _overlaid(under[key], value) for key, value in over.items() if _two_tables(under.get(key), value)}
    return {**under, **over, **both}


def _two_tables(under: Any, over: Any) -> bool:
    return isinstance(under, dict) and isinstance(over, dict)


def origin_of(keys: Keys, layers: Sequence[Layer]) -> str:
    for layer in reversed(layers):
        for end in range(len(keys), 0, -1):
            if _has(layer.values, keys[:end]):
                if end == len(keys) or not isinstance(_get(layer.values, keys[:end]), dict):
                    return layer.place(".".join(keys[:end]))
                break
    return "default"


def _has(tree: Any, keys: Keys) -> bool:
    return not keys or (isinstance(tree, dict) and keys[0] in tree and _has(tree[keys[0]], keys[1:]))


def _get(tree: Any, keys: Keys) -> Any:
    return _get(tree[keys[0]], keys[1:]) if keys else tree


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return "{...}"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
