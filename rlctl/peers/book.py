"""The book that a translation is kept in: the peer's values, given or default, and what has become of each.

Rules (`trl.py`, `verl.py`, `openrlhf.py`) take up the settings that only make sense together; the map takes the rest.
Each setting of the file is accounted for once: whoever takes it up first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlctl.peers.entries import Entry, Unresolved, shown
from rlctl.peers.findings import Effect, Finding, Group
from rlctl.peers.tables import NO_DEFAULT, Peer, Table

TRUE = {"true", "yes", "on", "1", "t", "y"}
FALSE = {"false", "no", "off", "0", "f", "n"}


@dataclass
class Book:
    """One translation under way. `devices` is None where nothing says how many."""

    peer: Peer
    table: Table
    given: Mapping[str, Entry]
    devices: int | None
    rewards: tuple[str, ...] = ()
    """rlctl's rewards that the user names for the peer's; none named leaves the reward open."""
    findings: list[Finding] = field(default_factory=list)
    done: set[str] = field(default_factory=set)

    def value(self, key: str) -> Any:
        """What the peer would have used: the file's value, else its default, else None."""
        if key in self.given:
            return self.given[key].value
        default = self.table.defaults.get(key)
        return None if default == NO_DEFAULT else default

    def has(self, *keys: str) -> bool:
        return any(key in self.given for key in keys)

    def flag(self, key: str) -> bool:
        """A switch: what the peers' parsers take for true is true."""
        return str(self.value(key)).lower() in TRUE

    def number(self, key: str) -> float | None:
        """A number, or None when it is absent, unresolved, or none."""
        return as_number(self.value(key))

    def whole(self, key: str) -> int | None:
        """A whole number of at least one, else None."""
        value = self.number(key)
        return int(value) if value is not None and value == int(value) and value >= 1 else None

    def exact(self, keys: Iterable[str], text: str, settings: Mapping[str, Any] | None = None) -> None:
        self.put(Group.EXACT, keys, text, settings)

    def meaning(self, keys: Iterable[str], text: str, settings: Mapping[str, Any] | None = None) -> None:
        self.put(Group.MEANING, keys, text, settings)

    def missing(self, keys: Iterable[str], text: str, effect: Effect = Effect.RESULT) -> None:
        self.put(Group.MISSING, keys, text, effect=effect)

    def invalid(self, keys: Iterable[str], text: str, effect: Effect = Effect.RESULT) -> None:
        self.put(Group.INVALID, keys, text, effect=effect)

    def unused(self, keys: Iterable[str], text: str) -> None:
        """Settings without effect in the peer, beside the value of another."""
        self.put(Group.EXACT, keys, f"without effect: {text}", absent=False)

    def put(
        self,
        group: Group,
        keys: Iterable[str],
        text: str,
        settings: Mapping[str, Any] | None = None,
        *,
        effect: Effect = Effect.NONE,
        absent: bool = True,
    ) -> None:
        """Record what became of `keys`. One that the file lacks turns a translation into a written-out default."""
        keys = tuple(keys)
        mine = tuple(key for key in keys if key in self.given and key not in self.done)
        self.done.update(keys)
        if not mine and (not absent or any(key in self.given for key in keys)):
            return
        different = group is Group.MEANING
        if not mine and group in (Group.EXACT, Group.MEANING):
            group = Group.DEFAULT
        place = self.given[mine[0]].place if mine else ""
        values = [self.value(key) for key in (mine or keys)]
        subject = ", ".join(mine or keys)
        value = values[0] if len(values) == 1 else values
        made = dict(settings or {})
        self.findings.append(Finding(group, subject, text, mine, value, made, effect, place, different))

    def remark(self, group: Group, subject: str, text: str, *, effect: Effect = Effect.NONE) -> None:
        """Something to know beside what became of each setting; accounts for none of them."""
        self.findings.append(Finding(group, subject, text, effect=effect))

    def waits(self, keys: Iterable[str], text: str = "", effect: Effect = Effect.RESULT) -> bool:
        """Whether one of `keys` is unresolved; they are then reported as such, and nothing is made of them."""
        keys = tuple(keys)
        names = [
            name
            for key in keys
            if isinstance(v := self.value(key), Unresolved)
            for name in v.names
            if key in self.given
        ]
        if not names:
            return False
        why = f"{', '.join(dict.fromkeys(shown(name) for name in names))} is not in the file"
        self.put(Group.UNRESOLVED, keys, f"{why}{'; ' + text if text else ''}", effect=effect)
        return True


def as_number(value: Any) -> float | None:
    """The finite number that a value is or spells; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
