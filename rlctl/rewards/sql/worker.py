"""The process that executes queries: one request a line on stdin, one reply a line on stdout, both JSON.

It imports the standard library, `guard.py` and `rows.py` and nothing else, so it starts in some 30 ms and cannot hold
torch. It ends when its stdin closes and, in the middle of a query too, when its parent is gone. Its own time limit is
SQLite's progress handler, which a single long instruction never reaches; for that the parent kills it (`pool.py`).

    {"db", "sql", "timeout_s", "backwards"?, "compare"?: {"gold", "comparison", "tolerance", "payload"?}}
    -> {"ok": true, "num_rows", "seconds", "rows": text of rows.encode} or, with "compare", {..., "same": bool}
    -> {"ok": false, "kind", "message"}, kind as in `FAILURES`; "unknown gold" asks for the payload
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from rlctl.rewards.sql import guard, rows

FAILURES = ("timeout", "memory", "too large", "forbidden", "invalid", "database", "crashed")
"""Why a query has no result. `database` is no fault of the query's; `timeout` and `crashed` come from the pool too."""

OPEN_DATABASES = 16
KNOWN_GOLDS = 256
INSTRUCTIONS_BETWEEN_LOOKS = 10_000
"""Some 0.2 ms of SQLite's virtual machine between two looks at the clock."""
SECONDS_BETWEEN_LOOKS_AT_PARENT = 0.5


def main() -> None:
    options = json.loads(sys.argv[1])
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    guard.limit_process(memory_mb=options["memory_mb"])
    threading.Thread(target=_end_with, args=(options["parent"],), daemon=True).start()
    Worker(max_rows=options["max_rows"], max_bytes=options["max_bytes"]).serve(sys.stdin.buffer, replies)


def _end_with(parent: int) -> None:
    """End this process once its parent has: SQLite lets go of the interpreter's lock, so this runs during a query."""
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS_AT_PARENT)
    os._exit(0)


class Failure(Exception):
    """A query without a result: kind and message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Worker:
    """Databases and gold results held open between requests, and the deadline of the one that is running."""

    def __init__(self, *, max_rows: int, max_bytes: int) -> None:
        self.max_rows, self.max_bytes = max_rows, max_bytes
        self.deadline = 0.0
        self.connections: OrderedDict[tuple[object, ...], sqlite3.Connection] = OrderedDict()
        self.golds: OrderedDict[str, tuple[list[rows.Row], list[int] | None]] = OrderedDict()

    def serve(self, requests: BinaryIO, replies: BinaryIO) -> None:
        for line in requests:
            try:
                reply = {"ok": True, **self.answer(json.loads(line))}
            except Failure as failure:
                reply = {"ok": False, "kind": failure.kind, "message": str(failure)[:500]}
            except MemoryError:
                reply = {"ok": False, "kind": "memory", "message": "the result does not fit the memory limit"}
            replies.write(json.dumps(reply).encode() + b"\n")
            replies.flush()
            if reply.get("kind") == "memory":
                return  # What is left of the memory is anybody's guess; the pool starts another.

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        compare = request.get("compare")
        gold = self._gold(compare) if compare else None
        start = time.monotonic()
        self.deadline = start + request["timeout_s"]
        found = self._execute(request["db"], request["sql"], backwards=bool(request.get("backwards")))
        done = {"num_rows": len(found), "seconds": time.monotonic() - start}
        if compare is None or gold is None:
            return {**done, "rows": rows.encode(found)}
        same = rows.same_rows(
            found, gold[0], comparison=compare["comparison"], blocks=gold[1], tolerance=compare["tolerance"]
        )
        return {**done, "same": same}

    def _gold(self, compare: dict[str, Any]) -> tuple[list[rows.Row], list[int] | None]:
        digest = compare["gold"]
        if digest not in self.golds:
            if "payload" not in compare:
                raise Failure("unknown gold", digest)
            payload = json.loads(compare["payload"])
            self.golds[digest] = rows.decode(payload["rows"]), payload["blocks"]
        return _recent(self.golds, digest, limit=KNOWN_GOLDS)

    def _execute(self, path: str, sql: str, *, backwards: bool) -> list[rows.Row]:
        try:
            # Any number of semicolons may end a statement; sqlite3 takes a second one for a second statement.
            cursor = self._connection(path, backwards=backwards).execute(sql.rstrip("; \t\r\n"))
            if cursor.description is None:
                raise Failure("invalid", "no query")
            return self._fetch(cursor)
        except guard.UnusableDatabase as error:
            raise Failure("database", str(error)) from error
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            # ValueError: a NUL character, or half a surrogate pair, which is a UnicodeEncodeError.
            raise Failure(self._kind(error), f"{error}") from error

    def _fetch(self, cursor: sqlite3.Cursor) -> list[rows.Row]:
        found: list[rows.Row] = []
        size = 0
        for row in cursor:
            found.append(row)
            size += 16 + sum(8 if cell is None or isinstance(cell, int | float) else len(cell) for cell in row)
            if len(found) > self.max_rows or size > self.max_bytes:
                cursor.close()
                what = f"{self.max_rows} rows" if len(found) > self.max_rows else f"{self.max_bytes} bytes"
                raise Failure("too large", f"more than {what}")
        return found

    def _kind(self, error: Exception) -> str:
        text = str(error)
        if "interrupted" in text:
            return "timeout"
        if "out of memory" in text:
            return "memory"
        if "too big" in text:
            return "too large"
        return "forbidden" if "authoriz" in text or "prohibited" in text else "invalid"

    def _connection(self, path: str, *, backwards: bool) -> sqlite3.Connection:
        """An open connection; a file that has changed since is opened anew."""
        try:
            status = Path(path).stat()
        except OSError as error:
            raise Failure("database", f"{path}: {error.strerror}") from error
        key = (path, backwards, status.st_mtime_ns, status.st_size, status.st_ino)
        if key not in self.connections:
            connection = guard.open_read_only(path, max_value_bytes=self.max_bytes, backwards=backwards)
            connection.set_progress_handler(self._late, INSTRUCTIONS_BETWEEN_LOOKS)
            self.connections[key] = connection
        return _recent(self.connections, key, limit=OPEN_DATABASES)

    def _late(self) -> bool:
        return time.monotonic() > self.deadline


Key = TypeVar("Key")
Value = TypeVar("Value")


def _recent(cache: OrderedDict[Key, Value], key: Key, *, limit: int) -> Value:
    """The value of a key that is there, now the most recently used of at most `limit`."""
    cache.move_to_end(key)
    while len(cache) > limit:
        cache.popitem(last=False)
    return cache[key]


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
