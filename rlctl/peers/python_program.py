"""The settings of a Python program that trains with TRL: what it hands to `GRPOConfig`, `GRPOTrainer`, `LoraConfig`.

Nothing is run. Literals are read, and names that the program binds once, to a literal; all else stays an expression.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from rlctl.errors import ConfigError
from rlctl.peers.entries import Entry
from rlctl.peers.references import EXPRESSION

CONFIG, TRAINER, LORA = "GRPOConfig", "GRPOTrainer", "LoraConfig"
LOADER = "from_pretrained"
"""Whose first argument names a model."""

TRAINER_KEYS = {"model": "model_name_or_path", "reward_funcs": "reward_funcs"}
"""Arguments of `GRPOTrainer`, in its order, and what TRL's own program calls the same."""
LORA_KEYS = {"r": "lora_r", "use_rslora": "use_rslora", "use_dora": "use_dora"}
"""Arguments of `LoraConfig` likewise, where it is not `lora_` before the name."""
LORA_DEFAULTS = {"r": 8, "lora_alpha": 8, "lora_dropout": 0.0}
"""Of peft, which are others than those of TRL's program."""
PLAIN_LORA = {"task_type": "CAUSAL_LM", "bias": "none"}
"""What says nothing where the matrices of a language model get factors."""


def read_program(text: str, path: str) -> list[Entry]:
    """What its one GRPOConfig is given, and the trainer and the LoRA beside it. Raises ConfigError."""
    try:
        return _entries(_Program(ast.parse(text)), path)
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply to be settings.") from None
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{path}:{getattr(error, 'lineno', None) or 1}: not Python: {error}.") from None


def _entries(program: _Program, path: str) -> list[Entry]:
    configs, trainers, loras = (program.calls(name) for name in (CONFIG, TRAINER, LORA))
    if len(configs) != 1:
        raise ConfigError(f"{path}: Python with {len(configs)} calls of GRPOConfig(...); one is wanted.")
    entries = list(program.arguments(configs[0], ("output_dir",)))
    if len(trainers) == 1:
        arguments = {entry.key: entry for entry in program.arguments(trainers[0], tuple(TRAINER_KEYS))}
        entries += [replace(arguments[name], key=key) for name, key in TRAINER_KEYS.items() if name in arguments]
        if "peft_config" in arguments and len(loras) == 1:
            entries += _lora(program, loras[0])
    return entries


def _lora(program: _Program, call: ast.Call) -> Iterator[Entry]:
    place = f"line {call.lineno}"
    given = {entry.key: entry for entry in program.arguments(call, ("r",))}
    usual = {name: Entry(name, value, place, name) for name, value in LORA_DEFAULTS.items()}
    yield Entry("use_peft", True, place, "peft_config")
    for name, entry in (usual | given).items():
        if entry.value != PLAIN_LORA.get(name, EXPRESSION):
            yield replace(entry, key=LORA_KEYS.get(name, f"lora_{name.removeprefix('lora_')}"))


class _Program:
    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.constants = _constants(tree)

    def calls(self, name: str) -> list[ast.Call]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and _name(node.func) == name]

    def arguments(self, call: ast.Call, in_order: tuple[str, ...]) -> Iterator[Entry]:
        """By name; `in_order` are the names of those that may be given without one."""
        named = [(keyword.arg or "**", keyword.value) for keyword in call.keywords]
        for name, node in (*zip(in_order, call.args, strict=False), *named):
            yield Entry(name, self._value(node), f"line {node.lineno}", name)

    def _value(self, node: ast.expr) -> Any:
        known = self._bound(node)
        if isinstance(known, ast.Call) and _name(known.func) == LOADER and known.args:
            node, known = known.args[0], self._bound(known.args[0])
        try:
            value = ast.literal_eval(known)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return f"{EXPRESSION} {ast.unparse(node)}"
        return list(value) if isinstance(value, tuple | set) else value

    def _bound(self, node: ast.expr) -> ast.expr:
        return self.constants.get(node.id, node) if isinstance(node, ast.Name) else node


def _constants(tree: ast.Module) -> Mapping[str, ast.expr]:
    """What names are bound to that are bound only once in the whole program."""
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    stored = Counter(node.id for node in names if isinstance(node.ctx, ast.Store))
    stored.update(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))
    found: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if stored[name] == 1:
                found[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if stored[name] == 1:
                found[name] = value
    return found


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
