"""Read the settings and defaults of TRL, verl and OpenRLHF out of their published wheels into rlctl/peers/defaults.

    pip download --no-deps -d WHEELS trl==1.16.0 transformers==5.14.1 verl==0.9.1 openrlhf==0.11.2 ...
    python scripts/build_peer_tables.py WHEELS

Sources are parsed, never imported or run. One table a version; each value stands under the file that it came from.
"""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlctl.toml_text import key_text, value_text

OUT = Path(__file__).resolve().parents[1] / "rlctl" / "peers" / "defaults"
NO_DEFAULT = "(none)"
"""Stands for a setting that has no default, or whose default is computed."""

Defaults = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One file of a wheel, and how its settings are read."""

    package: str
    file: str
    read: str
    classes: tuple[str, ...] = ()
    renamed: Mapping[str, str] | None = None


def dataclasses_of(*parts: tuple[str, str, str]) -> list[Part]:
    return [Part(package, file, "dataclass", tuple(names.split())) for package, file, names in parts]


TABLES: dict[str, list[Part]] = {
    "trl-1.16.0": dataclasses_of(
        ("trl-1.16.0", "trl/trainer/grpo_config.py", "GRPOConfig"),
        ("trl-1.16.0", "trl/trainer/base_config.py", "_BaseConfig"),
        ("trl-1.16.0", "trl/trainer/model_config.py", "ModelConfig"),
        ("trl-1.16.0", "trl/scripts/utils.py", "ScriptArguments DatasetMixtureConfig"),
        ("trl-1.16.0", "trl/scripts/grpo.py", "GRPOScriptArguments"),
        ("transformers-5.14.1", "transformers/training_args.py", "TrainingArguments"),
    ),
    "trl-0.18.0": dataclasses_of(
        ("trl-0.18.0", "trl/trainer/grpo_config.py", "GRPOConfig"),
        ("trl-0.18.0", "trl/trainer/model_config.py", "ModelConfig"),
        ("trl-0.18.0", "trl/scripts/utils.py", "ScriptArguments"),
        ("trl-0.18.0", "trl/scripts/grpo.py", "GRPOScriptArguments"),
        ("transformers-4.52.4", "transformers/training_args.py", "TrainingArguments"),
    ),
    "verl-0.9.1": [Part("verl-0.9.1", "verl/trainer/config/_generated_ppo_trainer.yaml", "yaml"),
                   Part("verl-0.9.1", "verl/trainer/config/_generated_ppo_megatron_trainer.yaml", "yaml")],
    "verl-0.5.0": [Part("verl-0.5.0", "verl/trainer/config/_generated_ppo_trainer.yaml", "yaml"),
                   Part("verl-0.5.0", "verl/trainer/config/_generated_ppo_megatron_trainer.yaml", "yaml")],
    "openrlhf-0.11.2": [Part("openrlhf-0.11.2", "openrlhf/cli/train_ppo_ray.py", "argparse")],
    "openrlhf-0.11.0": [Part("openrlhf-0.11.0", "openrlhf/cli/train_ppo_ray.py", "argparse")],
    "openrlhf-0.8.11": [Part("openrlhf-0.8.11", "openrlhf/cli/train_ppo_ray.py", "argparse")],
}  # fmt: skip


def main(folder: str) -> None:
    for name, parts in TABLES.items():
        seen: set[str] = set()
        lines = ["# Made by scripts/build_peer_tables.py from the published packages; do not edit.", ""]
        for part in parts:
            text = member(Path(folder), part)
            defaults = {k: v for k, v in READERS[part.read](text, part).items() if k not in seen}
            seen |= defaults.keys()
            lines += ["[[source]]", f"package = {value_text(part.package)}", f"file = {value_text(part.file)}", ""]
            lines += ["[source.defaults]", *(f"{key_text(k)} = {value_text(v)}" for k, v in sorted(defaults.items()))]
            lines.append("")
        (OUT / f"{name}.toml").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
        print(f"{name}: {len(seen)} settings")


def member(folder: Path, part: Part) -> str:
    (wheel,) = folder.glob(f"{part.package}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(part.file)]
        return archive.read(name).decode("utf-8")


def read_dataclasses(text: str, part: Part) -> Defaults:
    found: Defaults = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name in part.classes:
            for line in node.body:
                named = isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value
                if named and not line.target.id.startswith("_"):
                    found[line.target.id] = field_default(line.value)
    return found


def field_default(node: ast.expr) -> Any:
    if not isinstance(node, ast.Call):
        return constant(node)
    for keyword in node.keywords:
        if keyword.arg == "default":
            return constant(keyword.value)
        if keyword.arg == "default_factory":
            return [] if ast.unparse(keyword.value) == "list" else NO_DEFAULT
    return NO_DEFAULT


def constant(node: ast.expr | None) -> Any:
    """The value of a literal; tuples become lists, and what is computed has no default."""
    if node is None:
        return None
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return {"int(1e8)": 100_000_000, "float('inf')": "inf"}.get(ast.unparse(node), NO_DEFAULT)
    return list(value) if isinstance(value, tuple) else value


def read_yaml(text: str, part: Part) -> Defaults:
    return {key: value for key, value in leaves(yaml.safe_load(text)) if not key.endswith("_target_")}


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def read_argparse(text: str, part: Part) -> Defaults:
    found: Defaults = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for prefix in ("actor", "critic"):  # OpenRLHF adds some for both, in a loop over `prefix`
                name, value = argument(node, prefix)
                found.setdefault(name, value)
    return found


def argument(call: ast.Call, prefix: str) -> tuple[str, Any]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    name = call.args[0]
    if isinstance(name, ast.JoinedStr):
        spelled = "".join(prefix if isinstance(p, ast.FormattedValue) else str(p.value) for p in name.values)  # type: ignore[attr-defined]
    else:
        spelled = ast.literal_eval(name)
    default = given.get("default")
    if isinstance(default, ast.IfExp):
        default = default.body if prefix == "actor" else default.orelse
    action = given.get("action")
    if action is not None and default is None and ast.literal_eval(action) == "store_true":
        return spelled.lstrip("-"), False
    return spelled.lstrip("-"), constant(default)


READERS = {"dataclass": read_dataclasses, "yaml": read_yaml, "argparse": read_argparse}

if __name__ == "__main__":
    main(*sys.argv[1:])
