"""A config file of any form, read into entries: YAML, TOML, JSON, a launch script, a command's arguments, Python.

Nothing is run. What is not a config ends in a ConfigError that says what was found instead.
"""

from __future__ import annotations

import codecs
import json
import stat
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from rlctl.errors import ConfigError
from rlctl.peers.command_line import Launch, launch, override
from rlctl.peers.entries import MAX_ENTRIES, Entry, Source, flattened, whole
from rlctl.peers.python_program import read_program
from rlctl.peers.references import resolved
from rlctl.peers.shell import Command, Script, read_script
from rlctl.peers.yaml_entries import read_yaml

MAX_BYTES = 2**20
"""Far above any config; a weight file or a data set given by mistake is not read to its end."""

Read = Callable[[str, str, Mapping[str, str]], Source]


def read(path: str, *, variables: Mapping[str, str] | None = None) -> Source:
    """The entries of the config at `path`, `-` for standard input. `variables` fill in `$X` and `${oc.env:X}`.

    Raises ConfigError: no such file, too large, no text, no config.
    """
    text = _text(path)
    if not text.strip():
        raise ConfigError(f"{path}: is empty; a config of TRL, verl or OpenRLHF is wanted.")
    form = _FORMS.get(Path(path).suffix.lower()) or _guessed(text)
    given = dict(variables or {})
    source = _READERS[form](text, path, given)
    if len(source.entries) > MAX_ENTRIES:
        raise ConfigError(f"{path}: {len(source.entries)} settings; no config has more than {MAX_ENTRIES}.")
    if not source.entries:
        raise ConfigError(f"{path}: read as {source.form}, it has no settings.")
    loose = source.form in ("shell script", "arguments")
    return replace(source, entries=tuple(resolved(list(source.entries), given, loose=loose)))


def _text(path: str) -> str:
    data = _bytes(path)
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: is larger than {MAX_BYTES // 2**20} MiB, so it is no config.")
    for mark, name in ((codecs.BOM_UTF16_LE, "UTF-16"), (codecs.BOM_UTF16_BE, "UTF-16")):
        if data.startswith(mark):
            raise ConfigError(f"{path}: is {name}; save it as UTF-8.")
    if b"\0" in data:
        raise ConfigError(f"{path}: holds bytes of 0, so it is no text file.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text (byte {data[error.start]:#04x}).") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _bytes(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise ConfigError(f"{path}: is a folder; name one file in it.")
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _guessed(text: str) -> str:
    """The form of a text whose name does not tell."""
    start = text.lstrip()
    first = start.split("\n", 1)[0]
    if start.startswith("{"):
        return "json"
    if first.startswith("#!") or launch(start.split()[:200], "") is not None:
        lines = start.rstrip("\n").split("\n")
        return "argv" if len(lines) > 3 and not any(" " in line for line in lines[:3]) else "shell"
    if "GRPOConfig(" in text and ("import " in text or first.startswith(("GRPOConfig", "training_args"))):
        return "python"
    if any(line.startswith("[") and line.rstrip().endswith("]") for line in text.split("\n")):
        return "toml"
    return "yaml"


def _from_tree(tree: Any, path: str, form: str, lines: Mapping[str, int] | None = None) -> Source:
    if not isinstance(tree, dict):
        found = {list: "a list", str: "a text", type(None): "nothing"}.get(type(tree), f"a {type(tree).__name__}")
        raise ConfigError(f"{path}: read as {form}, it is {found}; a config is a table of settings.")
    places = lines or {}
    entries = [Entry(key, value, f"line {places[key]}" if key in places else "", key) for key, value in flattened(tree)]
    return Source(path, form, tuple(entries))


def _yaml(text: str, path: str, variables: Mapping[str, str]) -> Source:
    tree, lines = read_yaml(text, path)
    return _from_tree(tree, path, "YAML", lines)


def _toml(text: str, path: str, variables: Mapping[str, str]) -> Source:
    try:
        return _from_tree(tomllib.loads(text), path, "TOML")
    except ValueError as error:  # tomllib's own is one, and so is that of a number with thousands of digits
        raise ConfigError(f"{path}: not TOML: {error}.") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply to be settings.") from None


def _json(text: str, path: str, variables: Mapping[str, str]) -> Source:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = [key for at, (key, _) in enumerate(pairs) if key in {earlier for earlier, _ in pairs[:at]}]
        if twice:
            raise ConfigError(f"{path}: JSON with the key {twice[0]!r} for a second time.")
        return dict(pairs)

    try:
        return _from_tree(json.loads(text, object_pairs_hook=once, parse_int=whole), path, "JSON")
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: not JSON: {error.msg}.") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply to be settings.") from None


def _argv(text: str, path: str, variables: Mapping[str, str]) -> Source:
    found = launch(text.rstrip("\n").split("\n"), path)
    if found is None:
        raise ConfigError(f"{path}: read as a command, one argument a line; it runs no Python program.")
    return _from_launch(found, path, "arguments", ())


def _shell(text: str, path: str, variables: Mapping[str, str]) -> Source:
    script = read_script(text, variables)
    launches: list[tuple[Launch, Command]] = []
    for command in script.commands:
        found = launch(command.words, path, command.line)
        if found is not None and found.entries:
            launches.append((replace(found, launcher={**command.prefix, **found.launcher}), command))
    if not launches:
        _no_launch(script, path)
    found, command = _the_one(launches, path)
    notes = [
        f"{name} is set outside the script; its default {value!r} was taken" for name, value in script.defaulted.items()
    ]
    for line, what in script.faults:
        if command.line <= line <= command.last:
            raise ConfigError(f"{path}:{line}: not a shell script: {what!r} does not parse.")
        notes.append(f"line {line} does not parse and was passed over: {what}")
    return replace(_from_launch(found, path, "shell script", tuple(notes)), faults=tuple(_cut_off(script, command)))


def _no_launch(script: Script, path: str) -> NoReturn:
    if script.faults:
        line, what = script.faults[0]
        raise ConfigError(f"{path}:{line}: not a shell script: {what!r} does not parse.")
    ran = ", ".join(dict.fromkeys(command.words[0][:30] for command in script.commands)) or "no command"
    raise ConfigError(f"{path}: a shell script that starts no training; it runs {ran[:200]}.")


def _cut_off(script: Script, launched: Command) -> Iterator[str]:
    """Settings that stand right below the command and are not part of it: a backslash is not last in its line."""
    for command in script.commands:
        first = command.words[0]
        if command.line > launched.last and (first.startswith("--") or override(first)):
            yield (
                f"line {command.line} begins a command of its own, {first[:60]}: the line above it does not end in a "
                "backslash, or is a comment, so the shell cuts the command there and nothing below is passed on"
            )
            return


def _the_one(launches: Sequence[tuple[Launch, Command]], path: str) -> tuple[Launch, Command]:
    """The launch with by far the most settings: a script may also prepare data or serve a model."""
    ordered = sorted(launches, key=lambda pair: -len(pair[0].entries))
    if len(ordered) > 1 and len(ordered[1][0].entries) * 2 > len(ordered[0][0].entries):
        places = " and ".join(f"{found.program} in {found.entries[0].place}" for found, _ in ordered[:2])
        raise ConfigError(f"{path}: starts several trainings: {places}.", hint="leave one of them in the file.")
    return ordered[0]


def _from_launch(found: Launch, path: str, form: str, notes: tuple[str, ...]) -> Source:
    entries: dict[str, Entry] = {}
    more = list(notes)
    for entry in _opened(found.entries):
        if entry.key in entries:
            more.append(f"{entry.key} is given twice; the last value counts, as in the peer")
        entries[entry.key] = entry
    return Source(path, form, tuple(entries.values()), found.program, found.launcher, tuple(more))


def _opened(entries: Sequence[Entry]) -> list[Entry]:
    """Tables given as one argument, as the settings in them."""
    result: list[Entry] = []
    for entry in entries:
        if isinstance(entry.value, dict) and entry.value:
            result += [replace(entry, key=f"{entry.key}.{key}", value=v) for key, v in flattened(entry.value)]
        else:
            result.append(entry)
    return result


def _python(text: str, path: str, variables: Mapping[str, str]) -> Source:
    return Source(path, "Python", tuple(_opened(read_program(text, path))), "GRPOConfig(...)")


_FORMS = {
    ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json", ".sh": "shell", ".bash": "shell",
    ".slurm": "shell", ".sbatch": "shell", ".py": "python",
}  # fmt: skip
_READERS: dict[str, Read] = {
    "yaml": _yaml, "toml": _toml, "json": _json, "shell": _shell, "argv": _argv, "python": _python,
}  # fmt: skip
