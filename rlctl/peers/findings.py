"""What became of each setting of a peer's config: the data that the report and the TOML are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Group(Enum):
    """How a setting came over, in the order of the report."""

    EXACT = "translated exactly"
    MEANING = "translated with a change of meaning"
    DEFAULT = "not in the file: the peer's default differs from rlctl's, so it is written out"
    MISSING = "no counterpart in rlctl"
    UNKNOWN = "not a setting of the peer"
    INVALID = "refused or contradictory"
    UNRESOLVED = "depends on what is not in the file"

    @property
    def key(self) -> str:
        return self.name.lower()


class Effect(Enum):
    """What a setting that was left behind would have changed."""

    NONE = "nothing"
    SPEED = "speed or memory only"
    MEASURE = "what is measured, not what is learnt"
    RESULT = "the result"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know. `keys` are the settings of the file that it accounts for: each key has one finding.

    `settings` are rlctl's, with their new values; empty where rlctl's default says the same.
    """

    group: Group
    subject: str
    text: str
    keys: tuple[str, ...] = ()
    value: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    effect: Effect = Effect.NONE
    place: str = ""
    different: bool = False
    """Whether the peer means something else by it, even where the value is rlctl's own default."""


@dataclass(frozen=True, slots=True)
class Translation:
    """A peer's config as settings of rlctl, with everything that is different."""

    peer: str
    version: str
    path: str
    form: str
    settings: Mapping[str, Any]
    """Dotted name -> value: what differs from rlctl's defaults."""
    comments: Mapping[str, str]
    """Dotted name -> which of the peer's settings it comes from."""
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def changes_the_result(self) -> bool:
        """Whether anything was left behind that would have changed what is learnt."""
        return any(finding.effect is Effect.RESULT for finding in self.findings)
