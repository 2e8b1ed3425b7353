"""A file of JSON lines that a run appends to: whole lines, each step once, whatever ended the run before.

JSON here is strict: a number that is not finite becomes null, and its name is listed under `not_finite`.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlctl import regular


class Log:
    """Appends records. What a full disk does not take waits in memory and is written with the next record."""

    def __init__(self, path: Path, *, step_key: str, note: Callable[[str], None]) -> None:
        self.path, self.step_key, self.note = path, step_key, note
        self._waiting: list[bytes] = []

    def write(self, record: Mapping[str, Any]) -> None:
        self._waiting.append(json.dumps(strict(record), allow_nan=False).encode() + b"\n")
        try:
            self._drain()
        except OSError as error:
            if len(self._waiting) == 1:
                self.note(f"{self.path} cannot be written: {error.strerror or error}; its lines wait in memory")

    def flush(self) -> None:
        """Bring all lines to the disk. Raises OSError."""
        self._drain()
        with self.path.open("rb") as stream:
            os.fsync(stream.fileno())

    def _drain(self) -> None:
        if not self._waiting:
            return
        lines = b"".join(self._waiting)
        with open(self.path, "ab", buffering=0, opener=regular.without_waiting) as stream:
            size = stream.seek(0, os.SEEK_END)
            try:
                if stream.write(lines) != len(lines):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                stream.truncate(size)
                raise
        self._waiting.clear()

    def cut_after(self, step: int) -> list[dict[str, Any]]:
        """Keep the lines up to that step and drop the rest, which will be written again; gives the kept records.

        A line cut short by a kill, and whatever stands after it, goes too.
        """
        kept, end = [], 0
        regular.must_be_file(self.path)
        with self.path.open("r+b") as stream:
            for line in stream:
                record = _parsed(line)
                if record is None or not isinstance(at := record.get(self.step_key), int) or at > step:
                    break
                kept.append(record)
                end += len(line)
            stream.truncate(end)
            os.fsync(stream.fileno())
        return kept


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def strict(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with null for every number that is not finite, named under `not_finite`."""
    bad = sorted(key for key, value in record.items() if isinstance(value, float) and not math.isfinite(value))
    clean = {key: None if key in bad else value for key, value in record.items()}
    return {**clean, "not_finite": bad} if bad else clean
