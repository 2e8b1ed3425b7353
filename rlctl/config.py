"""Preset + file + environment + options -> Settings, with the origin of every value.

Precedence: option or `--set a.b=c` > `RLCTL_A__B=c` > `--config FILE` > preset (variant over its
own tables) > default; tables are merged, lists replaced. Every complaint is collected before one is
raised, and each names the value, where it came from and what would be right.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rlctl import presets, variants
from rlctl.backends import registry
from rlctl.errors import ConfigError
from rlctl.layers import Layer, from_environment, from_file, from_options, merged, origin_of, shown, with_nulls
from rlctl.presets import Preset, Tree, did_you_mean
from rlctl.settings import Settings
from rlctl.settings_tree import (
    Keys,
    field_type,
    fields,
    is_block,
    is_known,
    is_secret,
    item_block,
    leaves,
    nearest,
    paths,
)
from rlctl.variants import VariantChoice


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
        tuned_for = variant.settings.get("model", {}).get("path") if variant else None
        if variant is None or tuned_for in (None, self.settings.model.path) or origin.startswith("preset "):
            return []
        settings = self.settings
        lengths = (
            f"prompts of {settings.data.max_prompt_length}, answers of {settings.rollout.max_response_length} tokens"
        )
        risky = f"lr {settings.trainer.lr:g}, {lengths}"
        return [
            f"variant {variant.name} is tuned for {tuned_for}, and you set model.path; {risky} may not suit your model"
        ]


def load(
    *,
    preset: str | None = None,
    variant: str | None = None,
    config: str | None = None,
    assignments: Sequence[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
    environ: Mapping[str, str] | None = None,
    base: Layer | None = None,
) -> Loaded:
    """Settings from every source. `options` maps a dotted name to (option as typed, value); `base` lies under all.

    Raises ConfigError listing everything that is wrong, with value, origin and cure.
    """
    environ = os.environ if environ is None else environ
    complaints: list[str] = []
    chosen_preset = presets.find(preset) if preset is not None else None
    said = [
        from_file(config),
        from_environment(environ, complaints),
        from_options(assignments, options or {}, complaints),
    ]
    layers = [layer for layer in said if layer.values]
    choice = VariantChoice(None, "")
    if chosen_preset is not None:
        own = Layer(f"preset {chosen_preset.name}", with_nulls(chosen_preset.settings), {})
        choice = variants.choose(chosen_preset, variant, said=merged(layers))
        layers = [own, *_variant_layer(chosen_preset, choice), *layers]
    elif variant is not None:
        raise ConfigError(f"--variant {variant} was given without a preset.", hint="add --preset NAME.")
    layers = [base, *layers] if base else layers
    complaints += [complaint for layer in layers for complaint in _unknown_keys(layer)]
    settings = _validated(merged(layers), layers, complaints)
    if settings is None:
        raise ConfigError("\n".join(dict.fromkeys(complaints)), hint=_hint(complaints))
    return Loaded(settings, _origins(settings, layers), chosen_preset, choice)


def _hint(complaints: Sequence[str]) -> str:
    several = f"{len(set(complaints))} settings are wrong; " if len(set(complaints)) > 1 else ""
    return f"{several}`rlctl config show` prints every setting and where it came from."


def _variant_layer(preset: Preset, choice: VariantChoice) -> list[Layer]:
    if choice.variant is None:
        return []
    return [Layer(f"preset {preset.name}, variant {choice.variant.name}", with_nulls(choice.variant.settings), {})]


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


def _typed_blocks(backend: str, blocks: Tree, layers: Sequence[Layer], complaints: list[str]) -> Tree:
    wanted = dict(blocks)
    try:
        registry.get(backend)
    except ConfigError as error:
        origin = origin_of(("backend",), layers)
        complaints.append(f"backend = {shown(backend)} (from {origin}): {error.message} {error.hint}".rstrip())
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


def _without_unknown(tree: Tree, above: Keys = ()) -> Tree:
    """The tree less what `_unknown_keys` has complained of, so that nothing is complained of twice."""
    return {
        key: _without_unknown(value, (*above, key)) if isinstance(value, dict) and value else value
        for key, value in tree.items()
        if is_known((*above, key))
    }


def _unknown_keys(layer: Layer) -> Iterator[str]:
    for keys in paths(layer.values):
        for length in range(1, len(keys) + 1):
            if is_known(keys[:length]):
                continue
            dotted = ".".join(keys[:length])
            yield f"{dotted} (from {layer.place('.'.join(keys))}) is not a setting.{nearest(keys[:length])}"
            break


def _complaint(detail: Mapping[str, Any], layers: Sequence[Layer]) -> str:
    """One validation error as a sentence: name, value, origin, what would be right."""
    keys = tuple(str(part) for part in detail["loc"])
    setting = next((keys[:end] for end in range(len(keys), 0, -1) if field_type(keys[:end]) is not None), keys)
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] in ("model_type", "dict_type"):
        message = f"must be a table, as [{'.'.join(setting)}] begins one"
    message = "must " + message.removeprefix("Input should ") if message.startswith("Input should ") else message
    # Without a place it is a rule between tables.
    if (not keys or is_block(field_type(setting))) and isinstance(detail.get("input"), dict):
        return message + _origins_named_in(message, layers)
    value = "***" if is_secret(field_type(setting)) else shown(detail.get("input"))
    name, unknown = ".".join(setting) + _within(detail["loc"][len(setting) :]), detail["type"] == "extra_forbidden"
    if unknown and (block := item_block(field_type(setting))):
        return f"{name} (from {origin_of(setting, layers)}) is not a setting.{did_you_mean(keys[-1], fields(block))}"
    return f"{name} = {value} (from {origin_of(setting, layers)}) {message}"


def _within(place: Sequence[int | str]) -> str:
    """Where in a list of tables: `[1].weight`, tables counted from 1; empty for what is no list."""
    if not place or not isinstance(place[0], int):
        return ""
    return f"[{place[0] + 1}]" + "".join(f".{key}" for key in place[1:2])


def _origins_named_in(message: str, layers: Sequence[Layer]) -> str:
    """Where the settings that a rule between settings names came from."""
    named = [leaf for leaf in leaves() if ".".join(leaf) in message and origin_of(leaf, layers) != "default"]
    parts = [f"{'.'.join(leaf)} from {origin_of(leaf, layers)}" for leaf in named]
    return f" ({', '.join(parts)})" if parts else ""


def _origins(settings: Settings, layers: Sequence[Layer]) -> dict[str, str]:
    return {".".join(keys): origin_of(keys, layers) for keys in paths(dump(settings))}


def dump(settings: Settings) -> Tree:
    """The settings as plain JSON values; secrets are masked."""
    tree: Tree = settings.model_dump(mode="json")
    return tree
