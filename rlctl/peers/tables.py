"""What is known of each peer: its settings and defaults by version (`defaults/`), and what they are in rlctl (`maps/`).

Tables are read out of the peers' published packages by scripts/build_peer_tables.py, each value under the file it came
from. Maps are written by hand; `docs/coming-from.md` is made from them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from rlctl.peers.findings import Effect

FOLDER = Path(__file__).parent
PEERS = ("trl", "verl", "openrlhf")
NO_DEFAULT = "(none)"


@dataclass(frozen=True, slots=True)
class Table:
    """The settings of one version of a peer, with their defaults (None for null)."""

    version: str
    defaults: Mapping[str, Any]
    sources: Mapping[str, str]
    """Setting -> package and file that its default stands in."""

    def knows(self, key: str) -> bool:
        """Whether that is a setting, or lies in a table that takes anything."""
        if key in self.defaults:
            return True
        parts = key.split(".")
        return any(
            ".".join(parts[:end]) in self.defaults
            and self.defaults[".".join(parts[:end])] in (None, {}, [], NO_DEFAULT)
            for end in range(1, len(parts))
        )


@dataclass(frozen=True, slots=True)
class Mapped:
    """A setting of the peer that one setting of rlctl takes up."""

    setting: str
    values: Mapping[str, Any] | None = None
    note: str = ""
    default: bool = True
    lost: str = ""


@dataclass(frozen=True, slots=True)
class Without:
    """Settings that have no counterpart: why, and what that changes; at the value `neutral` it changes nothing."""

    keys: tuple[str, ...]
    why: str
    effect: Effect
    neutral: tuple[Any, ...] = ()
    reward: bool = False
    """Whether these make the reward, which --reward settles."""

    def covers(self, key: str) -> bool:
        return any(fnmatchcase(key, pattern) for pattern in self.keys)


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer: how it is recognised, its versions (newest first), and its map."""

    name: str
    title: str
    programs: tuple[str, ...]
    tables: tuple[Table, ...]
    mapped: Mapping[str, Mapped]
    without: tuple[Without, ...]
    implied: tuple[Mapping[str, Any], ...]
    always: tuple[str, ...]
    reward: str
    """Where the peer's reward comes from, for a config that does not say."""
    ruled: Mapping[str, str]
    """Settings that code works out together, with a word on each for the documentation."""
    renamed: Mapping[str, str]
    unknown: str

    def spelled(self, key: str) -> str:
        """The key as the maps spell it: newest name, and underscores where the peer takes either."""
        plain = key.replace("-", "_") if self.name != "verl" else key
        return self.renamed.get(plain, plain)

    def knows(self, key: str) -> bool:
        return (
            key in self.mapped
            or key in self.ruled
            or any(table.knows(key) for table in self.tables)
            or any(entry.covers(key) for entry in self.without)
        )

    def names(self) -> list[str]:
        known = {*self.mapped, *self.ruled, *(key for table in self.tables for key in table.defaults)}
        return sorted(known)


@cache
def load(name: str) -> Peer:
    """The peer of that name, from its map and tables."""
    tree = _toml(FOLDER / "maps" / f"{name}.toml")
    renamed = tree.get("renamed", {})
    return Peer(
        name=name,
        title=tree["title"],
        programs=tuple(tree["programs"]),
        tables=tuple(_table(name, version, renamed) for version in tree["versions"]),
        mapped={key: Mapped(**entry) for key, entry in tree["to"].items()},
        without=tuple(_without(tree["without"])),
        implied=tuple(tree.get("implied", ())),
        always=tuple(tree.get("always", ())),
        reward=tree["reward"],
        ruled=tree.get("ruled", {}),
        renamed=renamed,
        unknown=tree["unknown"],
    )


def _without(entries: list[dict[str, Any]]) -> Iterator[Without]:
    for entry in entries:
        neutral = tuple(None if value == "null" else value for value in entry.get("neutral", ()))
        effect, reward = Effect[entry["effect"].upper()], entry.get("reward", False)
        yield Without(tuple(entry["keys"]), entry["why"], effect, neutral, reward)


def _table(name: str, version: str, renamed: Mapping[str, str]) -> Table:
    defaults: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source in _toml(FOLDER / "defaults" / f"{name}-{version}.toml")["source"]:
        for key, value in source["defaults"].items():
            spelled = renamed.get(key, key)
            defaults[spelled] = None if value == "null" else value
            sources[spelled] = f"{source['package']}, {source['file']}"
    return Table(version, defaults, sources)


def _toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))
