"""The command that starts a peer's training: launcher, program, and its settings.

Settings are `--name value ...` (TRL, OpenRLHF) or hydra's `a.b=c`, `+a.b=c`, `++a.b=c` and `~a.b` (verl). What stands
before the program belongs to the launcher (torchrun, accelerate, deepspeed, ray), and tells the number of devices.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlctl.errors import ConfigError
from rlctl.peers.entries import Entry, scalar
from rlctl.peers.yaml_entries import read_yaml

SUBCOMMANDS = {("trl", "grpo"), ("swift", "rlhf"), ("axolotl", "train"), ("trl", "sft"), ("trl", "dpo")}
"""Programs whose first word names what is trained."""

_HYDRA = re.compile(r"(?P<sign>\+{0,2}|~)(?P<key>[A-Za-z_][\w./@-]*)(=(?P<value>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Launch:
    """A command taken apart. `entries` are the program's settings, `launcher` the options before it."""

    program: str
    entries: tuple[Entry, ...]
    launcher: Mapping[str, Any]


def launch(words: Sequence[str], path: str, line: int | None = None) -> Launch | None:
    """The settings of a command that runs a program; None for any other command."""
    start = _program_at(words)
    if start is None:
        return None
    program = " ".join(words[start : start + (2 if tuple(words[start : start + 2]) in SUBCOMMANDS else 1)])
    rest = words[start + len(program.split(" ")) :]
    place = f"line {line}" if line is not None else "argument"
    return Launch(program, tuple(_settings(rest, path, place)), dict(_options(words[:start])))


def _program_at(words: Sequence[str]) -> int | None:
    """Where the program stands: after the last `-m` or `--module`, or the first .py file; `a b` of SUBCOMMANDS."""
    for at, word in enumerate(words):
        if tuple(words[at : at + 2]) in SUBCOMMANDS:
            return at
        if word in ("-m", "--module") and at + 1 < len(words):
            inner = _program_at(words[at + 2 :])
            launches = words[at + 1].startswith(("torch.distributed", "accelerate.", "deepspeed.launcher"))
            return at + 2 + inner if launches and inner is not None else at + 1
        if word.endswith(".py") and not word.startswith("-") and "=" not in word:
            return at
        # `deepspeed --module $command`, where the command is kept in a variable.
        if re.fullmatch(r"(openrlhf\.cli|verl\.trainer)\.\w+", word):
            return at
    return None


def _settings(words: Sequence[str], path: str, place: str) -> Iterator[Entry]:
    flags = [at for at, word in enumerate(words) if _is_flag(word)]
    hydra = [word for word in words if not _is_flag(word) and _HYDRA.fullmatch(word) and _names_a_setting(word)]
    if len(hydra) > len(flags):
        yield from _overrides(words, path, place)
    else:
        yield from _flags(words, place)


def _names_a_setting(word: str) -> bool:
    return "=" in word or word.startswith("~")


def _is_flag(word: str) -> bool:
    return word.startswith("-") and re.fullmatch(r"-+[A-Za-z][\w.-]*(=.*)?", word, re.DOTALL) is not None


def override(word: str) -> bool:
    """Whether a word is `a.b=c`, a setting of hydra's within a table."""
    match = _HYDRA.fullmatch(word)
    return match is not None and match["value"] is not None and "." in match["key"]


def _overrides(words: Sequence[str], path: str, place: str) -> Iterator[Entry]:
    for word in words:
        bare = word.lstrip("-") if word.startswith("--") else word
        match = _HYDRA.fullmatch(bare)
        if match is None or not (match["value"] is not None or match["sign"] == "~"):
            yield Entry(word, None, place, word)
            continue
        value = override_value(match["value"] or "", path) if match["sign"] != "~" else None
        yield Entry(match["key"], value, place, word.partition("=")[0], added="+" in match["sign"])


def override_value(text: str, path: str) -> Any:
    """The value of a hydra override: a list, a table, quoted text, or a plain scalar."""
    text = text.strip()
    if text[:1] in ("[", "{") and text[-1:] in ("]", "}"):
        # Hydra takes {a:b} for a table; YAML wants a blank after the colon.
        spaced = re.sub(r"([{,]\s*[\w.]+):(?=[^\s/])", r"\1: ", text) if text[0] == "{" else text
        try:
            return read_yaml(spaced, path)[0]
        except ConfigError:
            return text
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return scalar(text)


def _flags(words: Sequence[str], place: str) -> Iterator[Entry]:
    """`--name`, `--name value`, `--name=value`, `--name value value`; numbers below 0 are values."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not _is_flag(word):
            yield Entry(word, None, place, word)
            continue
        name, equals, inline = word.partition("=")
        values = [inline] if equals else []
        while not equals and at < len(words) and not _is_flag(words[at]):
            values.append(words[at])
            at += 1
        yield Entry(name.lstrip("-"), _argument(values), place, name)


def _argument(values: list[str]) -> Any:
    if not values:
        return True
    read = [_json_or_scalar(value) for value in values]
    return read[0] if len(read) == 1 else read


def _json_or_scalar(text: str) -> Any:
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return scalar(text)


def _options(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Options of what launches the program. Those after a nested launcher win."""
    for at, word in enumerate(words):
        if "=" in word and re.match(r"-*\w[\w-]*=", word):
            name, _, value = word.lstrip("-").partition("=")
            yield name, value
        elif word.startswith("--") and at + 1 < len(words) and not words[at + 1].startswith("-"):
            yield word[2:], words[at + 1]
