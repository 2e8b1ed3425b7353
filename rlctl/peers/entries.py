"""What a peer's config says, in whatever form it came: one entry a setting, with the place it stands at.

A value that rests on a variable, an expression or a file that is not here is `Unresolved`: it is named in the report
and never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_ENTRIES = 20_000
"""More settings than any config has: a file with more is not one, or its anchors multiply without end."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A value that depends on what is not in the file: its text as written, and the names that are missing."""

    text: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting of the peer: `key` as its tables spell it, `spelled` as the file does."""

    key: str
    value: Any
    place: str
    spelled: str = ""
    added: bool = False
    """Whether hydra was told to add a key that its own config lacks (`+key=value`)."""


@dataclass(frozen=True, slots=True)
class Source:
    """A config that was read: its form, its entries, and, of a command, what runs it on how many devices."""

    path: str
    form: str
    entries: tuple[Entry, ...]
    program: str = ""
    launcher: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    """What is wrong with the file itself, so that the peer does not run what it seems to say."""

    def launched_devices(self) -> int | None:
        """Processes that the launcher starts, one a device; None where it does not say."""
        counts = {name.replace("-", "_"): value for name, value in self.launcher.items()}
        if (total := _count(counts.get("num_processes"))) is not None:
            return total
        each = next((n for key in ("nproc_per_node", "num_gpus") if (n := _count(counts.get(key))) is not None), None)
        nodes = _count(counts.get("nnodes", counts.get("num_nodes", 1)))
        if each is not None and nodes is not None:
            return each * nodes
        return _count(counts.get("CUDA_VISIBLE_DEVICES"))


def _count(value: Any) -> int | None:
    text = str(value)
    if re.fullmatch(r"\d+(,\d+)+", text):
        return text.count(",") + 1
    return int(text) if re.fullmatch(r"[1-9]\d{0,5}", text) else None


def flattened(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of each leaf; an empty table and a list are leaves."""
    for key, value in tree.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{name}.")
        else:
            yield name, value


_NULLS = {"", "~", "null", "Null", "NULL"}
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")
MOST_DIGITS = 100
"""Of a number; a longer one is no setting's, and Python refuses to read those of thousands."""

_FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


def scalar(text: str) -> Any:
    """A plain scalar: null, true or false, a number, else the text itself.

    Narrower than YAML 1.1, which takes `no` for false, `010` for 8 and `12:30` for 750, and `1e-6` for text: what
    could be read in two ways stays text here, for the setting's own type to judge.
    """
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text):
        return whole(text)
    if _FLOAT.fullmatch(text) and not re.fullmatch(r"[-+]?0[0-9]+", text):
        return float(text)
    return text


def whole(digits: str) -> int | str:
    """A whole number; what is too long for one stays text."""
    return int(digits) if len(digits) <= MOST_DIGITS else digits


def shown(value: Any, *, limit: int = 60) -> str:
    """A value on one line of a report."""
    if isinstance(value, Unresolved):
        text = value.text
    elif isinstance(value, str):
        text = value
    elif isinstance(value, Sequence):
        text = "[" + ", ".join(shown(item) for item in value) + "]"
    elif isinstance(value, Mapping):
        text = "{" + ", ".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}"
    else:
        text = {None: "null", True: "true", False: "false"}.get(value, str(value)) if not _number(value) else f"{value}"
    # Whatever a file holds, one line of plain characters is shown: no escape sequence reaches the terminal.
    text = "".join(character if character.isprintable() else " " for character in " ".join(text.split()))
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
