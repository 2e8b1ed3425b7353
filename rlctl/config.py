"""Preset + file + environment + options -> Settings, with the origin of every value.

Precedence: option or `--set a.b=c` > `RLCTL_A__B=c` > `--config FILE` > preset (variant over its
own tables) > default; tables are merged, lists replaced. pydantic-settings merges nothing we hand
it and validates; reading the environment stays here, because its own source ignores an RLCTL_
variable it does not know, guesses at the type of values in dict tables, and tells no origin.
Every complaint is collected before one is raised.
"""

from __future__ import annotations

import json
import os
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError

from rlctl import presets, variants
from rlctl.backends import registry
from rlctl.errors import ConfigError, RlctlError
from rlctl.presets import Preset, Tree, did_you_mean
from rlctl.settings import Settings
from rlctl.variants import VariantChoice

PREFIX = "RLCTL_"
NOT_SETTINGS = frozenset({"RLCTL_PLUGINS", "RLCTL_CACHE_DIR"})
"""Variables that rlctl reads elsewhere: plugin modules (registry) and the cache folder (perf)."""

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings with their story: dotted name -> where its value came from."""

    settings: Settings
    origins: Mapping[str, str]
    preset: Preset | None
    choice: VariantChoice

    def variant_line(self) -> str:
        """The first line of a run: which preset and variant, why, and how to get another."""
        if self.preset is None:
            return "no preset: defaults"
        if self.choice.variant is None:
            return f"preset {self.preset.name}"
        others = [v.name for v in self.preset.variants if v is not self.choice.variant]
        line = f"preset {self.preset.name}, variant {self.choice.variant.name} ({self.choice.reason})"
        return line + (f"; another: --variant {'|'.join(others)}" if others else "")

    def notes(self) -> list[str]:
        """What the user should know of how the settings fit together."""
        variant, origin = self.choice.variant, self.origins.get("model.path", "")
        if variant is not None and "model" in variant.settings and not origin.startswith("preset "):
            return [f"variant {variant.name} is tuned for {variant.settings['model'].get('path')}; you set model.path"]
        return []


@dataclass(frozen=True, slots=True)
class Layer:
    """One source of settings. `origin` says where it is; `names` the exact place of single values."""

    origin: str
    values: Tree
    names: Mapping[str, str]

    def place(self, dotted: str) -> str:
        return self.names.get(dotted, self.origin)


def load(
    *,
    preset: str | None = None,
    variant: str | None = None,
    config: str | None = None,
    assignments: Sequence[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Settings from every source. `options` maps a dotted name to (option as typed, value).

    Raises ConfigError listing everything that is wrong, with value, origin and cure.
    """
    environ = os.environ if environ is None else environ
    complaints: list[str] = []
    chosen_preset = presets.find(preset) if preset else None
    said = [
        _file_layer(config),
        _environment_layer(environ, complaints),
        _option_layer(assignments, options or {}, complaints),
    ]
    layers = [layer for layer in said if layer.values]
    choice = VariantChoice(None, "")
    if chosen_preset is not None:
        own = Layer(f"preset {chosen_preset.name}", chosen_preset.settings, {})
        over = _merged([own, *layers])
        choice = variants.choose(chosen_preset, variant, settings=_merged(layers) if not _clean(over) else over)
        layers = [own, *_variant_layer(chosen_preset, choice), *layers]
    elif variant is not None:
        raise ConfigError(f"--variant {variant} was given without a preset.", hint="add --preset NAME.")
    complaints += [complaint for layer in layers for complaint in _unknown_keys(layer)]
    values = _merged(layers)
    settings = _validated(values, layers, complaints)
    if settings is None:
        raise ConfigError("\n".join(dict.fromkeys(complaints)), hint=_hint(complaints))
    return Loaded(settings, _origins(settings, layers), chosen_preset, choice)


def _hint(complaints: Sequence[str]) -> str:
    several = f"{len(set(complaints))} settings are wrong; " if len(set(complaints)) > 1 else ""
    return f"{several}`rlctl config show` prints every setting and where it came from."


def _clean(values: Tree) -> bool:
    return all(isinstance(values.get(block, {}), dict) for block in ("model", "data"))


# --- the layers ---------------------------------------------------------------------------------


def _variant_layer(preset: Preset, choice: VariantChoice) -> list[Layer]:
    if choice.variant is None:
        return []
    return [Layer(f"preset {preset.name}, variant {choice.variant.name}", choice.variant.settings, {})]


def _file_layer(config: str | None) -> Layer:
    return Layer(config, presets.read_toml(Path(config)), {}) if config else Layer("", {}, {})


def _environment_layer(environ: Mapping[str, str], complaints: list[str]) -> Layer:
    values: Tree = {}
    names: dict[str, str] = {}
    for variable in sorted(environ):
        if not variable.upper().startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        keys = tuple(variable[len(PREFIX) :].lower().split("__"))
        keys = _spelled(keys)
        if field_type(keys) is None:
            complaints.append(f"{variable} is not a setting.{_nearest_variable(variable)}")
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


def _nearest_variable(variable: str) -> str:
    known = [variable_name(keys) for keys in leaves()] + sorted(NOT_SETTINGS)
    return did_you_mean(variable.upper(), known)


def variable_name(keys: Keys) -> str:
    """The environment variable of a setting: ("trainer", "lr") -> RLCTL_TRAINER__LR."""
    return PREFIX + "__".join(keys).upper().replace("-", "_")


def _option_layer(assignments: Sequence[str], options: Mapping[str, tuple[str, Any]], complaints: list[str]) -> Layer:
    values: Tree = {}
    names: dict[str, str] = {}
    for assignment in assignments:
        dotted, equals, text = assignment.partition("=")
        dotted = dotted.strip()
        if not equals or not dotted:
            complaints.append(f"--set {assignment} has no `=`; write --set trainer.lr=5e-7")
            continue
        keys = tuple(dotted.split("."))
        if field_type(keys) is None:
            complaints.append(f"{dotted} (from --set) is not a setting.{_nearest(keys)}")
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
        _put(values, keys, _read(text, field_type(keys)))
    except ValueError as error:
        shown = "***" if _is_secret(field_type(keys)) else _shown(text)
        complaints.append(f"{'.'.join(keys)} = {shown} (from {origin}) {error}")


def _read(text: str, annotation: Any) -> Any:
    """Text from a shell as the value of a setting: null, JSON or commas for lists and tables, else the text itself."""
    optional = type(None) in get_args(annotation)
    if text == "null" and optional:
        return None
    if optional and text.lower() in ("none", "nil", "~", ""):
        raise ValueError("is not how to leave it out; write null")
    if _is_container(annotation):
        try:
            return json.loads(text)
        except ValueError:
            if _is_table(annotation):
                raise ValueError('must be a JSON object, such as {"a": 1}') from None
            return [part.strip() for part in text.strip("[]() ").split(",")] if text.strip() else []
    return text


def _put(values: Tree, keys: Keys, value: Any) -> None:
    for key in keys[:-1]:
        below = values.setdefault(key, {})
        if not isinstance(below, dict):
            return
        values = below
    values[keys[-1]] = value


def _merged(layers: Sequence[Layer]) -> Tree:
    result: Tree = {}
    for layer in layers:
        result = _overlaid(result, layer.values)
    return result


def _overlaid(under: Tree, over: Tree) -> Tree:
    both = {key: _overlaid(under[key], value) for key, value in over.items() if _two_tables(under.get(key), value)}
    return {**under, **over, **both}


def _two_tables(under: Any, over: Any) -> bool:
    return isinstance(under, dict) and isinstance(over, dict)


# --- the tree of settings -----------------------------------------------------------------------


def fields(block: type[BaseModel]) -> dict[str, Any]:
    """Name -> annotation of a block's fields."""
    return {name: info.annotation for name, info in block.model_fields.items()}


def field_type(keys: Keys) -> Any:
    """The annotation of the setting at `keys`; None when there is no such setting."""
    block: Any = Settings
    for position, key in enumerate(keys):
        if keys[:position] == ("remote_backend",):
            block = _backend_block(key)
        elif _is_block(block):
            block = fields(block).get(key)
        else:
            return None
        if block is None:
            return None
    return block


def _backend_block(name: str) -> type[BaseModel] | None:
    """The settings class of a registered backend. Raises RlctlError when it cannot be imported."""
    if name not in registry.names():
        return None
    block: type[BaseModel] = registry.get(name).load("settings")
    return block


def leaves(block: Any = None, above: Keys = ()) -> Iterator[Keys]:
    """The keys of every single setting, those of each importable backend included."""
    for name, annotation in fields(block or Settings).items():
        keys = (*above, name)
        if keys == ("remote_backend",):
            yield from _backend_leaves()
        elif _is_block(annotation):
            yield from leaves(annotation, keys)
        else:
            yield keys


def _backend_leaves() -> Iterator[Keys]:
    for name in registry.names():
        try:
            block = _backend_block(name)
        except RlctlError:
            # Only a source of suggestions: a plugin that cannot be imported has none to give.
            continue
        if block is not None and name != "local":
            yield from leaves(block, ("remote_backend", name))


def _is_block(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _is_container(annotation: Any) -> bool:
    origins = {get_origin(part) or part for part in _alternatives(annotation)}
    return bool(origins & {list, tuple, dict, set, frozenset}) or _is_table(annotation)


def _is_table(annotation: Any) -> bool:
    return any(_is_block(part) or (get_origin(part) or part) is dict for part in _alternatives(annotation))


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _is_secret(annotation: Any) -> bool:
    return any(part in (SecretStr, SecretBytes) for part in _alternatives(annotation))


# --- complaints ---------------------------------------------------------------------------------


def _unknown_keys(layer: Layer) -> Iterator[str]:
    for keys in _paths(layer.values):
        for length in range(1, len(keys) + 1):
            if _known(keys[:length]):
                continue
            dotted = ".".join(keys[:length])
            yield f"{dotted} (from {layer.place('.'.join(keys))}) is not a setting.{_nearest(keys[:length])}"
            break


def _known(keys: Keys) -> bool:
    return field_type(keys) is not None or _is_free_table(keys[:-1])


def _is_free_table(keys: Keys) -> bool:
    """Whether any key may stand in the table at `keys`: a plugin's setting that is a plain dict."""
    annotation = field_type(keys) if keys else None
    return keys != ("remote_backend",) and dict in {get_origin(part) or part for part in _alternatives(annotation)}


def _paths(tree: Mapping[str, Any], above: Keys = ()) -> Iterator[Keys]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _paths(value, (*above, key))
        else:
            yield (*above, key)


def _nearest(keys: Keys) -> str:
    if len(keys) == 2 and keys[0] == "remote_backend":
        return did_you_mean(keys[1], registry.names()) or f" Registered backends: {', '.join(registry.names())}."
    dotted = [".".join(leaf) for leaf in leaves()] + list(fields(Settings))
    near = did_you_mean(".".join(keys), dotted)
    same_leaf = [name for name in dotted if name.rsplit(".", 1)[-1] == keys[-1]]
    return f" Did you mean {same_leaf[0]}?" if same_leaf else near


def _validated(values: Tree, layers: Sequence[Layer], complaints: list[str]) -> Settings | None:
    """The settings, or None with every complaint added to `complaints`."""
    known = _without_unknown(values)
    backend = known.get("backend", "local")
    blocks = known.get("remote_backend", {})
    if isinstance(backend, str) and isinstance(blocks, dict):
        known["remote_backend"] = _typed_blocks(backend, blocks, layers, complaints)
    try:
        settings = Settings(**known)
    except ValidationError as error:
        complaints += [_complaint(detail, layers) for detail in error.errors(include_url=False)]
        return None
    return None if complaints else settings


def _without_unknown(tree: Tree, above: Keys = ()) -> Tree:
    """The tree less what `_unknown_keys` has complained of, so that nothing is complained of twice."""
    return {
        key: _without_unknown(value, (*above, key)) if isinstance(value, dict) and value else value
        for key, value in tree.items()
        if _known((*above, key))
    }


def _typed_blocks(backend: str, blocks: Tree, layers: Sequence[Layer], complaints: list[str]) -> Tree:
    wanted = dict(blocks)
    try:
        registry.get(backend)
    except ConfigError as error:
        origin = _origin_of(("backend",), layers)
        complaints.append(f"backend = {_shown(backend)} (from {origin}): {error.message} {error.hint}".rstrip())
        return wanted
    if backend != "local":
        wanted.setdefault(backend, {})
    typed = {}
    for name, block in wanted.items():
        try:
            typed[name] = registry.get(name).load("settings").model_validate(block)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                complaints.append(_complaint({**detail, "loc": ("remote_backend", name, *detail["loc"])}, layers))
    return typed


def _complaint(detail: Mapping[str, Any], layers: Sequence[Layer]) -> str:
    """One validation error as a sentence: name, value, origin, what would be right."""
    keys = tuple(str(part) for part in detail["loc"])
    setting = next((keys[:end] for end in range(len(keys), 0, -1) if field_type(keys[:end]) is not None), keys)
    message = str(detail["msg"]).removeprefix("Value error, ")
    message = "must " + message.removeprefix("Input should ") if message.startswith("Input should ") else message
    if _is_block(field_type(setting)) and isinstance(detail.get("input"), dict):
        return message + _origins_named_in(message, layers)
    value = "***" if _is_secret(field_type(setting)) else _shown(detail.get("input"))
    return f"{'.'.join(setting)} = {value} (from {_origin_of(setting, layers)}) {message}"


def _origins_named_in(message: str, layers: Sequence[Layer]) -> str:
    """Where the settings that a rule between settings names came from."""
    named = [leaf for leaf in leaves() if ".".join(leaf) in message and _origin_of(leaf, layers) != "default"]
    parts = [f"{'.'.join(leaf)} from {_origin_of(leaf, layers)}" for leaf in named]
    return f" ({', '.join(parts)})" if parts else ""


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "{...}"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


# --- origins ------------------------------------------------------------------------------------


def _origins(settings: Settings, layers: Sequence[Layer]) -> dict[str, str]:
    return {".".join(keys): _origin_of(keys, layers) for keys in _paths(dump(settings))}


def _origin_of(keys: Keys, layers: Sequence[Layer]) -> str:
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


def dump(settings: Settings) -> Tree:
    """The settings as plain JSON values; secrets are masked."""
    tree: Tree = settings.model_dump(mode="json")
    return tree


def json_schema() -> Tree:
    """The JSON Schema of all settings, with the table of each backend whose settings can be imported."""
    schema: Tree = Settings.model_json_schema()
    blocks: Tree = {}
    for name in registry.names():
        if name == "local":
            continue
        try:
            block = _backend_block(name)
        except RlctlError:
            # A broken plugin has no schema; `rlctl plugins` says why.
            continue
        if block is not None:
            blocks[name] = block.model_json_schema()
    schema["properties"]["remote_backend"]["properties"] = blocks
    schema["properties"]["remote_backend"]["additionalProperties"] = False
    return schema
