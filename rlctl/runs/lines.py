"""JSON lines that another process may be writing, or has damaged: what can be read, and what is wrong with the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl import regular

Record = Mapping[str, Any]

LARGEST = 1e100
"""No metric is larger, as float32 ends at 3.4e38; beyond, sums and axes overflow."""

TOLD = 5
"""Faulty lines of a file that are named one by one; further ones are counted."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The records of a file, and what was wrong with other lines. `unfinished` says that the last has no end yet."""

    records: tuple[Record, ...]
    complaints: tuple[str, ...]
    unfinished: bool = False


def read_lines(path: Path) -> Lines:
    """Every line that is a JSON object; a file that is not there has none."""
    try:
        content = regular.read_bytes(path)
    except FileNotFoundError:
        return Lines((), ())
    except OSError as error:
        return Lines((), (f"{path} cannot be read: {error.strerror or error}",))
    *whole, rest = content.split(b"\n")
    records, faults = [], []
    for number, line in enumerate(whole, start=1):
        if (record := parsed(line)) is not None:
            records.append(record)
        elif line.strip():
            faults.append(f"{path}:{number} is not a JSON object and is left out")
    told = faults[:TOLD]
    if len(faults) > TOLD:
        told.append(f"{path}: {len(faults) - TOLD:,} more lines are not JSON objects and are left out")
    return Lines(tuple(records), tuple(told), unfinished=bool(rest.strip()))


def parsed(line: bytes) -> Record | None:
    """The object on a line; None where there is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_object(path: Path) -> tuple[Record, tuple[str, ...]]:
    """(the JSON object of a file, empty where there is none; what is wrong with it)."""
    try:
        record = parsed(regular.read_bytes(path))
    except FileNotFoundError:
        return {}, ()
    except OSError as error:
        return {}, (f"{path} cannot be read: {error.strerror or error}",)
    return ({}, (f"{path} is not a JSON object",)) if record is None else (record, ())


def number(value: object) -> float | None:
    """The value where it is a number that can be drawn and summed, else None, as for text, true, null and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) and abs(found) <= LARGEST else None
