"""Which tool a config is of: by the program that is started, else by the settings only that tool has."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from rlctl.errors import ConfigError
from rlctl.peers.entries import Source
from rlctl.peers.tables import FOLDER, PEERS, Peer, Table, load
from rlctl.presets import did_you_mean

LEAST_KNOWN = 0.5
"""Share of a file's settings that a peer must know for the file to be its own; forks add some."""
SHOWN_KEYS = 5


@dataclass(frozen=True, slots=True)
class Foreign:
    """A tool whose configs are recognised and not translated."""

    title: str
    programs: tuple[str, ...]
    keys: tuple[str, ...]

    def marks(self, source: Source) -> list[str]:
        """What in the file is of this tool and no other."""
        program = [source.program] if any(fnmatchcase(source.program, pattern) for pattern in self.programs) else []
        keys = [e.key for e in source.entries if any(fnmatchcase(e.key, pattern) for pattern in self.keys)]
        return program + keys


def peer_of(source: Source, wanted: str | None) -> Peer:
    """The peer that wrote the config; `wanted` is what --from says. Raises ConfigError that names what was found."""
    if wanted is not None and wanted not in PEERS:
        near = did_you_mean(wanted, PEERS)
        raise ConfigError(f"--from {wanted} is not one of {', '.join(PEERS)}.{near}")
    foreign = [(marks, tool.title) for tool in foreign_tools() if len(marks := tool.marks(source)) >= 1]
    shares = {name: known_share(load(name), source) for name in PEERS}
    best = max(shares, key=lambda name: shares[name])
    by_program = next((name for name in PEERS if _starts(load(name), source.program)), None)
    if by_program is None and foreign:
        marks, title = max(foreign)
        if shares.get(wanted or best, 0.0) < 1 - 1e-9:
            raise _other(source, title, marks)
    found = by_program or best
    if wanted is not None and wanted != found and shares[wanted] < max(shares[found], LEAST_KNOWN):
        marks = [source.program] if by_program else [e.key for e in source.entries if load(found).knows(e.key)]
        raise ConfigError(
            f"{source.path}: --from {wanted}, but it is a config of {load(found).title}: it has {_some(marks)}.",
            hint=f"use --from {found}, or leave --from out.",
        )
    chosen = wanted or found
    if not by_program and shares[chosen] < LEAST_KNOWN:
        raise _nobody(source, chosen, shares[chosen])
    return load(chosen)


def known_share(peer: Peer, source: Source) -> float:
    known = sum(peer.knows(peer.spelled(entry.key)) for entry in source.entries)
    return known / len(source.entries)


def version_of(peer: Peer, keys: Sequence[str], wanted: str | None) -> Table:
    """The version whose defaults hold: the one asked for, else the newest that knows the most of the settings."""
    if wanted is not None:
        for table in peer.tables:
            if table.version == wanted:
                return table
        versions = ", ".join(table.version for table in peer.tables)
        raise ConfigError(f"--peer-version {wanted}: the defaults of {peer.title} are known for {versions}.")
    return min(peer.tables, key=lambda table: sum(not table.knows(key) for key in keys))


def _starts(peer: Peer, program: str) -> bool:
    return any(fnmatchcase(program, pattern) for pattern in peer.programs)


def _other(source: Source, title: str, marks: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{source.path}: this is a config of {title}: it has {_some(marks)}.",
        hint="rlctl translates configs of TRL, verl and OpenRLHF; docs/coming-from.md has their settings.",
    )


def _nobody(source: Source, nearest: str, share: float) -> ConfigError:
    strange = [entry.key for entry in source.entries if not load(nearest).knows(load(nearest).spelled(entry.key))]
    return ConfigError(
        f"{source.path}: read as {source.form}, it is no config of TRL, verl or OpenRLHF: nearest is "
        f"{load(nearest).title}, which knows {share:.0%} of its settings and not {_some(strange)}.",
        hint="`rlctl config import` wants the file or the command that starts a training with one of them.",
    )


def _some(keys: Sequence[str]) -> str:
    shown = ", ".join(key[:60] for key in keys[:SHOWN_KEYS])
    return shown + (f" and {len(keys) - SHOWN_KEYS} more" if len(keys) > SHOWN_KEYS else "")


@cache
def foreign_tools() -> tuple[Foreign, ...]:
    tree: Mapping[str, Any] = tomllib.loads((FOLDER / "maps" / "others.toml").read_text(encoding="utf-8"))
    return tuple(
        Foreign(entry["title"], tuple(entry.get("programs", ())), tuple(entry["keys"])) for entry in tree["tool"]
    )
