"""The tree of settings: which there are, of what type, with which names; backends' own tables included."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, SecretBytes, SecretStr

from rlctl.backends import registry
from rlctl.errors import BackendUnavailable, RlctlError
from rlctl.peers.counterparts import counterpart
from rlctl.presets import Tree, did_you_mean
from rlctl.settings import Settings

PREFIX = "RLCTL_"
"""What every environment variable of ours begins with."""

Keys = tuple[str, ...]
"""The way to a setting: ("trainer", "lr")."""


def leaves(block: Any = None, above: Keys = ()) -> Iterator[Keys]:
    """The keys of every single setting, those of each importable backend included."""
    for name, annotation in fields(block or Settings).items():
        keys = (*above, name)
        if keys == ("remote_backend",):
            yield from _backend_leaves()
        elif is_block(annotation):
            yield from leaves(annotation, keys)
        else:
            yield keys


def _backend_leaves() -> Iterator[Keys]:
    for name in registry.names():
        try:
            block = backend_block(name)
        except RlctlError:
            # Only a source of suggestions: a plugin that cannot be imported has none to give.
            continue
        if block is not None and name != "local":
            yield from leaves(block, ("remote_backend", name))


def field_type(keys: Keys) -> Any:
    """The annotation of the setting at `keys`; None when there is no such setting."""
    block: Any = Settings
    for position, key in enumerate(keys):
        if keys[:position] == ("remote_backend",):
            block = backend_block(key)
        elif is_block(block):
            block = fields(block).get(key)
        else:
            return None
        if block is None:
            return None
    return block


def fields(block: type[BaseModel]) -> dict[str, Any]:
    """Name -> annotation of a block's fields."""
    return {name: info.annotation for name, info in block.model_fields.items()}


def backend_block(name: str) -> type[BaseModel] | None:
    """The settings class of a registered backend. Raises RlctlError when it cannot be imported."""
    if name not in registry.names() or name == "local":
        return None
    block = registry.get(name).load("settings")
    if not (isinstance(block, type) and issubclass(block, BaseModel)):
        raise BackendUnavailable(
            f"the settings of backend {name!r} are not a pydantic class, but {type(block).__name__}.",
            hint="its `register` call names something else.",
        )
    return block


def is_known(keys: Keys) -> bool:
    return field_type(keys) is not None or any(_is_free_table(keys[:end]) for end in range(1, len(keys)))


def _is_free_table(keys: Keys) -> bool:
    """Whether anything may stand in the table at `keys`, tables of its own included: a setting that is a plain dict."""
    annotation = field_type(keys) if keys else None
    return keys != ("remote_backend",) and dict in {get_origin(part) or part for part in _alternatives(annotation)}


def is_block(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def is_container(annotation: Any) -> bool:
    origins = {get_origin(part) or part for part in _alternatives(annotation)}
    return bool(origins & {list, tuple, dict, set, frozenset}) or is_table(annotation)


def is_table(annotation: Any) -> bool:
    return any(is_block(part) or (get_origin(part) or part) is dict for part in _alternatives(annotation))


def item_block(annotation: Any) -> type[BaseModel] | None:
    """The table that each item of a list of tables is; None for anything else."""
    items = [item for part in _alternatives(annotation) for item in get_args(part) if is_block(item)]
    return items[0] if items and is_container(annotation) else None


def is_secret(annotation: Any) -> bool:
    return any(part in (SecretStr, SecretBytes) for part in _alternatives(annotation))


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def variable_name(keys: Keys) -> str:
    """The environment variable of a setting: ("trainer", "lr") -> RLCTL_TRAINER__LR."""
    return PREFIX + "__".join(keys).upper().replace("-", "_")


def nearest(keys: Keys) -> str:
    """What was meant, as a sentence: another framework's setting, one of that name in another table, or the nearest."""
    if len(keys) == 2 and keys[0] == "remote_backend":
        return did_you_mean(keys[1], registry.names()) or f" Registered backends: {', '.join(registry.names())}."
    dotted = [".".join(leaf) for leaf in leaves()] + list(fields(Settings))
    near = did_you_mean(".".join(keys), dotted)
    same_leaf = [name for name in dotted if name.rsplit(".", 1)[-1] == keys[-1]]
    if theirs := counterpart(".".join(keys)) or (not same_leaf and counterpart(keys[-1])):
        return f" {theirs}"
    return f" Did you mean {same_leaf[0]}?" if same_leaf else near


def paths(tree: Mapping[str, Any], above: Keys = ()) -> Iterator[Keys]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from paths(value, (*above, key))
        else:
            yield (*above, key)


def json_schema() -> Tree:
    """The JSON Schema of all settings, with the table of each backend whose settings can be imported."""
    schema: Tree = Settings.model_json_schema()
    blocks: Tree = {}
    for name in registry.names():
        if name == "local":
            continue
        try:
            block = backend_block(name)
        except RlctlError:
            # A broken plugin has no schema; `rlctl plugins` says why.
            continue
        if block is not None:
            blocks[name] = block.model_json_schema()
    schema["properties"]["remote_backend"]["properties"] = blocks
    schema["properties"]["remote_backend"]["additionalProperties"] = False
    return schema
