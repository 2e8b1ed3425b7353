"""What a check saw of a backend, pinned in a file, and what has changed since: for a CI that wants to know that day.

Pinned are versions, and of every public method how it is called and with which parameters. Paths are not: they
differ between machines. A version that changed is a change, even when nothing else did.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlctl.backends.probe.report import PartReport, Report
from rlctl.errors import ConfigError

FORMAT = 1
"""Of the file; a file of another one is not compared."""

Pinned = dict[str, Any]


def pinned(report: Report) -> Pinned:
    """What a lock holds of a report."""
    parts = {f"{part.part} {part.target}": _part(part) for part in report.parts}
    return {"rlctl_lock": FORMAT, "backend": report.backend, "parts": parts}


def _part(part: PartReport) -> Pinned:
    methods = {m.name: {"style": m.found, "signature": m.signature, "called": m.call} for m in part.methods}
    version = part.package.version if part.package else None
    return {"version": version, "kind": part.kind, "methods": methods, "extra": sorted(part.extra)}


def write_lock(path: Path, report: Report) -> None:
    """Raises ConfigError when the file cannot be written."""
    try:
        path.write_text(json.dumps(pinned(report), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--write-lock {path}: {error.strerror or error}.") from error


def drift(path: Path, report: Report) -> list[str]:
    """What differs from the lock, one line each. Raises ConfigError for a file that is no lock of this backend."""
    lock = _read(path)
    if lock["backend"] != report.backend:
        raise ConfigError(f"--lock {path}: it was written for backend {lock['backend']!r}, not {report.backend!r}.")
    now = pinned(report)["parts"]
    return [
        line
        for name in sorted(lock["parts"].keys() | now.keys())
        for line in _part_drift(name, lock["parts"].get(name), now.get(name))
    ]


def _read(path: Path) -> Pinned:
    try:
        lock = json.loads(path.read_text(encoding="utf-8"))
        if lock["rlctl_lock"] == FORMAT and isinstance(lock["backend"], str) and _has_parts(lock["parts"]):
            return dict(lock)
    except OSError as error:
        raise ConfigError(f"--lock {path}: {error.strerror or error}.", hint="--write-lock writes one.") from error
    except (ValueError, KeyError, TypeError, RecursionError):
        pass  # told below, with every other way of being no lock
    raise ConfigError(f"--lock {path} is no lock of this version of rlctl.", hint="write it anew with --write-lock.")


def _has_parts(parts: Any) -> bool:
    return isinstance(parts, dict) and all(isinstance(part, dict) and _is_part(part) for part in parts.values())


def _is_part(part: Pinned) -> bool:
    methods, extra = part["methods"], part["extra"]
    if not (isinstance(methods, dict) and isinstance(extra, list)):
        return False
    return all(isinstance(method, dict) for method in methods.values()) and all(isinstance(e, str) for e in extra)


def _part_drift(name: str, before: Pinned | None, now: Pinned | None) -> Iterator[str]:
    if before is None or now is None:
        yield f"{name} {'is new' if before is None else 'is gone'}"
        return
    for field in ("version", "kind"):
        if before.get(field) != now[field]:
            yield f"{name}: {field} was {before.get(field)}, is {now[field]}"
    for method in sorted(before["methods"].keys() | now["methods"].keys()):
        yield from _method_drift(f"{name}: {method}", before["methods"].get(method), now["methods"].get(method))
    yield from (f"{name}: {extra} is gone" for extra in sorted(set(before["extra"]) - set(now["extra"])))
    yield from (f"{name}: {extra} is new" for extra in sorted(set(now["extra"]) - set(before["extra"])))


def _method_drift(name: str, before: Pinned | None, now: Pinned | None) -> Iterator[str]:
    if before is None or now is None:
        yield f"{name} {'is new in' if before is None else 'is gone from'} the contract"
        return
    for field in ("style", "signature", "called"):
        if before.get(field) != now[field]:
            yield f"{name}: {field} was {before.get(field) or 'unknown'}, is {now[field] or 'unknown'}"
