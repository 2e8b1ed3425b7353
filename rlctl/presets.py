"""Presets: TOML files of settings, some with variants for different machines.

A preset's tables are settings; beside them it may have `summary` and `[[variant]]` entries, each with
a `name`, what it `requires`, and `settings` laid over the preset's own. The first variant whose
requirements hold is taken, unless one is named. Files stand in `presets/` of a checkout and in
`rlctl/presets/` of a wheel; a path to a TOML file works wherever a name does.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlctl.errors import ConfigError

Tree = dict[str, Any]

_REQUIREMENTS = {"cuda_memory_gb": "a number of GiB", "model": "true or false", "data": "true or false"}


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a preset. `requires` may hold cuda_memory_gb (GiB), model and data (reachable)."""

    name: str
    summary: str
    settings: Tree
    requires: Mapping[str, Any] = field(default_factory=dict)
    by_name_only: bool = False


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    path: Path
    summary: str
    settings: Tree
    variants: Sequence[Variant] = ()

    def variant(self, name: str) -> Variant:
        """The variant called `name`. Raises ConfigError with the nearest."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        known = [variant.name for variant in self.variants]
        if not known:
            raise ConfigError(f"preset {self.name} has no variants, so not {name!r}.", hint="leave --variant out.")
        raise ConfigError(
            f"--variant {name} is not a variant of preset {self.name}.{did_you_mean(name, known)}",
            hint=f"variants: {', '.join(known)}.",
        )


def find(name_or_path: str) -> Preset:
    """The preset of that name, or in that TOML file. Raises ConfigError with the nearest name."""
    by_name = available()
    if name_or_path in by_name:
        return read(by_name[name_or_path])
    path = Path(name_or_path)
    if path.suffix == ".toml" or "/" in name_or_path:
        return read(path)
    raise ConfigError(
        f"no preset is called {name_or_path!r}.{did_you_mean(name_or_path, by_name)}",
        hint=f"presets: {', '.join(by_name)}; or give the path of a .toml file.",
    )


def available() -> dict[str, Path]:
    """Name -> file of every preset that ships with rlctl, sorted by name."""
    return {path.stem: path for path in sorted(_folder().glob("*.toml"))}


def _folder() -> Path:
    package = Path(__file__).resolve().parent
    in_wheel = package / "presets"
    return in_wheel if in_wheel.is_dir() else package.parent / "presets"


def read(path: Path) -> Preset:
    """Read and check one preset file. Raises ConfigError naming the file."""
    tree = read_toml(path)
    summary = tree.pop("summary", "")
    variants = tree.pop("variant", [])
    if not isinstance(summary, str) or not isinstance(variants, list):
        raise ConfigError(f"{path}: `summary` must be text and `variant` a list of [[variant]] tables.")
    made = tuple(_variant(path, entry) for entry in variants)
    names = [variant.name for variant in made]
    if len(set(names)) < len(names):
        raise ConfigError(f"{path}: two variants have one name: {', '.join(names)}.")
    return Preset(path.stem, path, summary, tree, made)


def _variant(path: Path, entry: Any) -> Variant:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ConfigError(f"{path}: every [[variant]] needs a `name`.")
    where = f"{path}: variant {entry['name']}"
    for key in entry.keys() - _VARIANT_KEYS.keys():
        near = did_you_mean(key, _VARIANT_KEYS)
        raise ConfigError(f"{where} has the unknown key {key!r}.{near}", hint=f"keys: {', '.join(_VARIANT_KEYS)}.")
    for key, kind in _VARIANT_KEYS.items():
        if not isinstance(entry.get(key, kind()), kind):
            raise ConfigError(f"{where}: `{key}` must be {_WORDS[kind]}, not {entry[key]!r}.")
    requires = entry.get("requires", {})
    for key, value in requires.items():
        if key not in _REQUIREMENTS:
            raise ConfigError(
                f"{where} requires the unknown {key!r}.{did_you_mean(key, _REQUIREMENTS)}",
                hint=f"a variant can require {', '.join(_REQUIREMENTS)}.",
            )
        if isinstance(value, bool) == (key == "cuda_memory_gb") or not isinstance(value, int | float):
            raise ConfigError(f"{where}: requires.{key} must be {_REQUIREMENTS[key]}, not {value!r}.")
    return Variant(
        entry["name"], entry.get("summary", ""), entry.get("settings", {}), requires, entry.get("by_name_only", False)
    )


_VARIANT_KEYS: dict[str, type] = {"name": str, "summary": str, "requires": dict, "by_name_only": bool, "settings": dict}
_WORDS = {str: "text", dict: "a table", bool: "true or false"}


def read_toml(path: Path) -> Tree:
    """The tables of a TOML file. Raises ConfigError that names the file and, for a syntax error, the line."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        near = [p.name for p in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        raise ConfigError(f"{path}: no such file.{did_you_mean(path.name, near)}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text (byte {data[error.start]:#04x}).") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply to be settings.") from None
    except ValueError as error:  # tomllib's own is one, and so is that of a number with thousands of digits
        hint = "" if path.suffix == ".toml" else "settings files are TOML: [trainer] on one line, lr = 1e-6 below it."
        raise ConfigError(f"{path}: not valid TOML: {error}.", hint=hint) from None


def did_you_mean(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """' Did you mean X?' for the nearest known word, else the empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]}?" if near else ""
