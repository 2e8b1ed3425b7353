"""What `rlctl doctor` says: a line a check, with its cure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlctl.doctor.facts import GIB

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Line:
    """One check: what was looked at, how it is, what was found, and what to do."""

    name: str
    status: Status
    found: str
    cure: str = ""
    source: str = ""


def ok(name: str, found: str) -> Line:
    return Line(name, "ok", found)


def warn(name: str, found: str, cure: str, *, source: str = "") -> Line:
    return Line(name, "warn", found, cure, source)


def fail(name: str, found: str, cure: str, *, source: str = "") -> Line:
    return Line(name, "fail", found, cure, source)


def gib(size: int | None) -> str:
    return "n/a" if size is None else f"{size / GIB:.1f} GiB"


def exit_code(lines: Sequence[Line]) -> int:
    """3 when anything fails, as for a backend that is not available; warnings are 0."""
    return 3 if any(line.status == "fail" for line in lines) else 0
