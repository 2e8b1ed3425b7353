"""What gold queries give: executed once under limits of their own, kept on disk, shared by all completions.

A file a result in the cache folder, named by the database's content, the query and the limits. It holds its own
checksum, so one that is damaged or half of an older format is made again; it is written whole or not at all, so any
number of runs may share the folder. Failures that may pass (a time-out) are remembered by this process only.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlctl.cache import cache_folder, write_whole
from rlctl.rewards.sql import rows
from rlctl.rewards.sql.pool import Pool
from rlctl.rewards.sql.statement import inner_ties_broken, is_ordered, tie_broken

FORMAT = 2
"""Of the cache files; raised when what they hold changes."""

SUM_ORDER = 1e-9
"""Relative difference that the order of a floating-point sum may make."""

KEPT_BYTES = 256 * 2**20
"""Of results kept in memory; beyond that they are read from disk again."""


@dataclass(frozen=True)
class Gold:
    """The result of a gold query, or why there is none.

    `blocks` are the sizes of its runs of tied rows (`rows.tied_blocks`) when its outermost query is ordered.
    `undefined` says that the query does not decide what it gives: ties reach across a LIMIT, its own or a sub-query's,
    or the direction of a scan shows in the rows.
    """

    rows: str = "[]"
    num_rows: int = 0
    blocks: tuple[int, ...] | None = None
    undefined: bool = False
    seconds: float = 0.0
    kind: str = ""
    """Of the failure, as in `worker.FAILURES`; empty when there is a result."""
    message: str = ""

    @functools.cached_property
    def payload(self) -> str:
        """What a worker compares with."""
        return json.dumps({"rows": self.rows, "blocks": self.blocks})

    @functools.cached_property
    def digest(self) -> str:
        """By which a worker knows the payload."""
        return hashlib.sha256(self.payload.encode()).hexdigest()


class GoldResults:
    """Gold results by (database, query). Safe to use from many threads; each is computed once at a time."""

    def __init__(self, pool: Pool, *, timeout_s: float, folder: Path | None = None) -> None:
        self.pool, self.timeout_s = pool, timeout_s
        self.folder = folder or cache_folder() / "sql-gold"
        self._known: dict[str, Gold] = {}
        self._known_bytes = 0
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, database: str, sql: str) -> Gold:
        """Raises OSError when there is no such file."""
        key = self._key(content_hash(database), sql)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            gold = self._known.get(key) or self._read(key)
            if gold is None:
                gold = self._execute(database, sql)
                self._write(key, gold)
            self._keep(key, gold)
        return gold

    def _keep(self, key: str, gold: Gold) -> None:
        with self._lock:
            if key not in self._known:
                self._known_bytes += len(gold.rows)
            self._known[key] = gold
            while self._known_bytes > KEPT_BYTES and len(self._known) > 1:
                self._known_bytes -= len(self._known.pop(next(iter(self._known))).rows)

    @functools.lru_cache(maxsize=65536)  # noqa: B019  # of a process's few results, which live as long as it does
    def _key(self, content: str, sql: str) -> str:
        limits = self.pool.limits
        parts = (FORMAT, sqlite3.sqlite_version, content, sql, limits.max_rows, limits.max_result_mb)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _file(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def _read(self, key: str) -> Gold | None:
        try:
            return _unsealed(self._file(key).read_bytes())
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _write(self, key: str, gold: Gold) -> None:
        """A folder that cannot be written costs time in later runs, and is no reason to end this one."""
        if gold.kind in ("", "invalid", "forbidden", "too large"):
            with contextlib.suppress(OSError):
                write_whole(self._file(key), _sealed(gold))

    def _execute(self, database: str, sql: str) -> Gold:
        reply = self._ask(database, sql)
        if not reply["ok"]:
            return Gold(kind=reply["kind"], message=reply["message"])
        plain = Gold(rows=reply["rows"], num_rows=reply["num_rows"], seconds=reply["seconds"])
        gold = self._with_ties(plain, database, sql)
        agree = all(_agree(other["rows"], gold) for other in self._otherwise(database, sql) if other["ok"])
        return gold if agree else _changed(gold, undefined=True)

    def _otherwise(self, database: str, sql: str) -> Iterator[dict[str, Any]]:
        """What the query gives when it is executed in other ways that its text allows."""
        yield self.pool.ask({"db": database, "sql": sql, "backwards": True}, timeout_s=self.timeout_s)
        for direction in ("ASC", "DESC"):
            broken = inner_ties_broken(sql, direction=direction)
            if broken is not None:
                yield self._ask(database, broken)

    def _with_ties(self, plain: Gold, database: str, sql: str) -> Gold:
        """The result with its tied rows found, by putting them in order from either end."""
        found = rows.decode(plain.rows)
        both: list[dict[str, Any]] = []
        for direction in ("ASC", "DESC"):
            broken = tie_broken(sql, num_columns=len(found[0]), direction=direction) if found else None
            if broken is not None:
                both.append(self._ask(database, broken))
        ordered = is_ordered(sql)
        if not both or not all(reply["ok"] for reply in both):
            return _changed(plain, blocks=(1,) * plain.num_rows if ordered else None)
        first, last = (rows.decode(reply["rows"]) for reply in both)
        blocks = rows.tied_blocks(first, last)
        if blocks is None:
            return _changed(plain, blocks=(1,) * plain.num_rows if ordered else None, undefined=True)
        return _changed(plain, rows=both[0]["rows"], blocks=tuple(blocks)) if ordered else plain

    def _ask(self, database: str, sql: str) -> dict[str, Any]:
        return self.pool.ask({"db": database, "sql": sql}, timeout_s=self.timeout_s)


def _agree(backwards: str, gold: Gold) -> bool:
    """Whether scans in the other direction give the same, but for the rounding of sums."""
    both = rows.decode(backwards), rows.decode(gold.rows)
    return rows.same_rows(*both, comparison="strict", blocks=gold.blocks, tolerance=SUM_ORDER)


def _changed(gold: Gold, **changes: Any) -> Gold:
    return Gold(**{**asdict(gold), **changes})


def _sealed(gold: Gold) -> bytes:
    body = json.dumps(asdict(gold))
    return f"{hashlib.sha256(body.encode()).hexdigest()}\n{body}\n".encode()


def _unsealed(data: bytes) -> Gold:
    """Raises ValueError, TypeError or KeyError when it is not what `_sealed` wrote."""
    checksum, _, body = data.decode("ascii").partition("\n")
    body = body.removesuffix("\n")
    if hashlib.sha256(body.encode()).hexdigest() != checksum:
        raise ValueError("damaged")
    fields = json.loads(body)
    return Gold(**{**fields, "blocks": None if fields["blocks"] is None else tuple(fields["blocks"])})


_hashes: dict[tuple[object, ...], str] = {}

LARGE_BYTES = 64 * 2**20
"""From this size on a file's hash is kept on disk too: BIRD's databases are 33 GB, a minute of reading."""


def content_hash(path: str) -> str:
    """SHA-256 of a file's bytes; read once for as long as size, times and place stay the same. Raises OSError."""
    status = os.stat(path)  # noqa: PTH116  # asked for every completion, and five times as fast as Path(path).stat()
    key = (path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    if key not in _hashes:
        _hashes[key] = _hash(path) if status.st_size < LARGE_BYTES else _kept_hash(path, key)
    return _hashes[key]


def _hash(path: str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _kept_hash(path: str, key: tuple[object, ...]) -> str:
    name = hashlib.sha256(repr(key).encode("utf-8", "surrogateescape")).hexdigest()
    kept = cache_folder() / "sql-gold" / "hashes" / name
    with contextlib.suppress(OSError, UnicodeDecodeError):
        known = kept.read_text("ascii")
        if len(known) == 64:
            return known
    found = _hash(path)
    with contextlib.suppress(OSError):
        write_whole(kept, found.encode())
    return found
