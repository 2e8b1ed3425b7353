"""Open a database so that no statement can change it, leave a file, or take more than its share.

Four walls, each enough for most of what a policy writes by accident:
  - SQLite opens the file with `mode=ro&immutable=1`: no lock, no -wal, -shm or journal file, no write;
  - an authorizer allows reading and functions on a list, and nothing else: no ATTACH, PRAGMA, DDL or load_extension;
  - SQLite's limits bound values, statements, expressions and its heap; temporary data stays in memory;
  - the process may not write to any file (RLIMIT_FSIZE 0) nor hold more memory than `memory_mb` (RLIMIT_AS).
The time limit is not here: see `worker.py` and, for what no handler can stop, `pool.py`.

Sources: https://www.sqlite.org/c3ref/set_authorizer.html, https://www.sqlite.org/limits.html,
https://www.sqlite.org/uri.html, https://www.sqlite.org/security.html. Standard library only.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sqlite3
from pathlib import Path
from urllib.parse import quote

MAX_SQL_BYTES = 100_000
"""Longest statement. The longest of BIRD's golds has 1,800 characters."""

MAX_EXPRESSION_DEPTH = 500
"""Half of SQLite's default: its recursion then fits any thread's stack."""

HEADER = b"SQLite format 3\x00"


class UnusableDatabase(Exception):
    """The file is missing, is no database, or cannot be read without being changed."""


def open_read_only(path: str, *, max_value_bytes: int, backwards: bool = False) -> sqlite3.Connection:
    """A connection that can only read. Raises UnusableDatabase.

    `backwards` scans in the other direction wherever a query does not ask for an order.
    """
    check_file(path)
    try:
        # No statement opens a transaction, and text that is not UTF-8 keeps its bytes.
        connection = sqlite3.connect(
            f"file:{quote(path)}?mode=ro&immutable=1", uri=True, isolation_level=None, check_same_thread=False
        )
        connection.text_factory = _text
        for pragma in ("query_only = ON", "temp_store = MEMORY", "trusted_schema = OFF", "mmap_size = 0"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(f"PRAGMA reverse_unordered_selects = {int(backwards)}")
        _load_virtual_tables(connection)
    except sqlite3.Error as error:
        raise UnusableDatabase(f"{path} cannot be opened: {error}") from error
    for limit, value in _limits(max_value_bytes).items():
        connection.setlimit(limit, value)
    connection.set_authorizer(_authorize)
    return connection


def _load_virtual_tables(connection: sqlite3.Connection) -> None:
    """Let full-text tables and their like declare themselves now: they do it by statements the authorizer refuses."""
    names = connection.execute("SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL TABLE%'").fetchall()
    for name in (*(name for (name,) in names), "json_each", "json_tree"):
        # A module that is not built in: no query can read that table, and all others can be read.
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute(f"SELECT 1 FROM {quoted(name)} LIMIT 0")


def quoted(name: str) -> str:
    """A table's or column's name as an SQL identifier, whatever is in it."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


@functools.cache
def named(name: str) -> str:
    """The name as it may stand in a query: plain where SQLite takes it plain, else in quotes."""
    if not name.isidentifier() or not name.isascii():
        return quoted(name)
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        try:
            # Asked of SQLite itself: which of its keywords may be names depends on the version.
            connection.execute(f"CREATE TABLE {name}({name})")
            connection.execute(f"SELECT {name}, {name}.{name} FROM {name} WHERE {name} > 0 GROUP BY {name}")
        except sqlite3.OperationalError:
            return quoted(name)
    return name


def check_file(path: str) -> None:
    """Raises UnusableDatabase when the file is no database, or its last changes are still in a log beside it."""
    try:
        with Path(path).open("rb") as file:
            header = file.read(len(HEADER))
    except OSError as error:
        raise UnusableDatabase(f"{path}: {error.strerror or error}") from error
    if header not in (HEADER, b""):
        raise UnusableDatabase(f"{path} is not an SQLite database")
    if not header:
        raise UnusableDatabase(f"{path} is empty")
    for suffix in ("-wal", "-journal"):
        with contextlib.suppress(OSError):
            if Path(path + suffix).stat().st_size:
                raise UnusableDatabase(
                    f"{path}{suffix} holds changes that are not in the database yet; "
                    f"open it once with sqlite3 and run PRAGMA wal_checkpoint(TRUNCATE)"
                )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _limits(max_value_bytes: int) -> dict[int, int]:
    return {
        sqlite3.SQLITE_LIMIT_LENGTH: max_value_bytes,
        sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_SQL_BYTES,
        sqlite3.SQLITE_LIMIT_EXPR_DEPTH: MAX_EXPRESSION_DEPTH,
        sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 500,
        sqlite3.SQLITE_LIMIT_VDBE_OP: 1_000_000,
        sqlite3.SQLITE_LIMIT_ATTACHED: 0,
        sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 10_000,
        sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
    }


# The authorizer


def _authorize(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
    """Whether SQLite may do that: select, read, recurse, and call functions on the list."""
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_OK if (second or "").lower() in FUNCTIONS else sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_READ:
        return sqlite3.SQLITE_DENY if (first or "").lower() in HIDDEN_TABLES else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA:
        # A full-text table asks for it by itself, to see whether it has changed.
        return sqlite3.SQLITE_OK if first == "data_version" and second is None else sqlite3.SQLITE_DENY
    allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
    return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY


HIDDEN_TABLES = frozenset({"sqlite_dbpage", "dbstat", "sqlite_stmt", "bytecode", "tables_used", "sqlite_memstat"})
"""Virtual tables that show the file or the process and not the data."""

FUNCTIONS = frozenset(
    name
    for line in (
        "abs acos acosh asin asinh atan atan2 atanh avg bm25 ceil ceiling changes char coalesce concat concat_ws",
        "cos cosh count cume_dist current_date current_time current_timestamp date datetime degrees dense_rank",
        "exp first_value floor format geopoly_area geopoly_contains_point geopoly_overlap geopoly_within glob",
        "group_concat hex highlight if ifnull iif instr json json_array json_array_length json_each",
        "json_error_position json_extract json_group_array json_group_object json_insert json_object json_patch",
        "json_pretty json_quote json_remove json_replace json_set json_tree json_type json_valid jsonb",
        "jsonb_array jsonb_extract jsonb_group_array jsonb_group_object jsonb_insert jsonb_object jsonb_patch",
        "jsonb_remove jsonb_replace jsonb_set julianday lag last_insert_rowid last_value lead length like",
        "likelihood likely ln log log10 log2 lower ltrim match matchinfo max median min mod nth_value ntile",
        "nullif octet_length offsets percent_rank percentile percentile_cont percentile_disc pi pow power printf",
        "quote radians random randomblob rank regexp replace round row_number rtreecheck rtrim sign sin sinh",
        "snippet soundex sqlite_version sqrt strftime string_agg subtype substr substring sum tan tanh time",
        "timediff total total_changes trim trunc typeof unhex unicode unistr unistr_quote unixepoch unlikely",
        "upper zeroblob -> ->>",
    )
    for name in line.split()
)
"""SQLite's own functions of values. Not among them: load_extension, readfile, writefile, edit, fts3_tokenizer..."""


# The process


def limit_process(*, memory_mb: int) -> None:
    """Bound this process for good: memory, files, core dumps. A limit that the system does not know is left out."""
    import resource  # here, since the rest of this module is used where there is no such module too

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for kind, value in (
        ("RLIMIT_FSIZE", 0),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_AS", memory_mb * 2**20),
    ):
        # macOS refuses RLIMIT_AS; SQLite's own hard_heap_limit holds there.
        with contextlib.suppress(ValueError, OSError, AttributeError):
            resource.setrlimit(getattr(resource, kind), (value, value))
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        # Of the process, not of the connection: https://www.sqlite.org/pragma.html#pragma_hard_heap_limit
        connection.execute(f"PRAGMA hard_heap_limit = {memory_mb * 2**20 // 2}")
