"""A database in words: tables, columns with what they mean and hold, keys and sample rows, as rich as asked for.

Read through the same guard as a completion's query (`rewards/sql/guard.py`), so describing a database cannot change it.
Descriptions are BIRD's: `database_description/{table}.csv` beside the database, in UTF-8 or, where that fails, cp1252.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlctl.errors import DataError
from rlctl.rewards.sql import guard

CELL_CHARS = 60
"""Longest cell of a sample row and longest example value; more says nothing about a column."""
DESCRIPTION_CHARS = 300
MAX_VALUE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Detail:
    """How much a schema tells beside tables and columns."""

    sample_rows: int
    example_values: int
    descriptions: bool
    foreign_keys: bool
    compact: bool = False
    """One line a table, without comments and rows: for models with little context."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `meaning` and `values` are what its description says, `examples` its first values."""

    name: str
    type: str
    constraint: str
    meaning: str
    values: str
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """One table with its first rows, cells as text; `key` are the columns of a primary key of more than one."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    references: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def schema_text(database: str, detail: Detail) -> str:
    """The schema of a database, without what SQLite cannot read in it. Raises DataError when that is all of it."""
    # Read at the most detail any prompt asks for, so that cutting does not read again.
    tables = _tables(database, max(detail.sample_rows, 10), max(detail.example_values, 10))
    if detail.compact:
        return "\n".join(_one_line(table, detail) for table in tables)
    return "\n\n".join(_block(table, detail) for table in tables)


def _one_line(table: Table, detail: Detail) -> str:
    columns = ", ".join(f"{guard.named(column.name)} {column.type}".strip() for column in table.columns)
    keys = "".join(f", {reference}" for reference in table.references) if detail.foreign_keys else ""
    return f"{guard.named(table.name)} ({columns}{keys})"


def _block(table: Table, detail: Detail) -> str:
    parts = []
    if detail.foreign_keys and table.references:
        parts.append(f"-- {guard.named(table.name)} refers to others: {'; '.join(map(_line, table.references))}")
    if detail.sample_rows and table.rows:
        rows = table.rows[: detail.sample_rows]
        header = " | ".join(_line(column.name) for column in table.columns)
        parts.append(f"/* first {len(rows)} rows of {_in_comment(table.name)}:")
        parts += [_in_comment(header), *(_in_comment(" | ".join(row)) for row in rows), "*/"]
    lines = [_column_line(column, detail) for column in table.columns]
    if table.key:
        lines.append((f"PRIMARY KEY ({', '.join(map(guard.named, table.key))})", ""))
    last_code, last_note = lines[-1]
    ended = [(f"{code},", note) for code, note in lines[:-1]] + [(last_code, last_note)]
    parts.append(f"CREATE TABLE {guard.named(table.name)} (")
    parts += [f"    {code} -- {note}" if note else f"    {code}" for code, note in ended]
    return "\n".join([*parts, ");"])


def _column_line(column: Column, detail: Detail) -> tuple[str, str]:
    """(definition, comment)."""
    notes = []
    if detail.descriptions:
        notes += [note for note in (column.meaning, column.values) if note]
    if detail.example_values and column.examples:
        notes.append(f"e.g. {', '.join(column.examples[: detail.example_values])}")
    definition = " ".join(filter(None, (guard.named(column.name), column.type, column.constraint)))
    return definition, " | ".join(notes)


def _line(text: str) -> str:
    """On one line: a line break would end a comment."""
    return " ".join(text.split())


def _in_comment(text: str) -> str:
    return _line(text).replace("*/", "* /")


# Reading


@functools.lru_cache(maxsize=256)
def _tables(database: str, num_rows: int, num_examples: int) -> tuple[Table, ...]:
    try:
        connection = guard.open_read_only(database, max_value_bytes=MAX_VALUE_BYTES)
    except guard.UnusableDatabase as error:
        raise DataError(f"{error}.", hint="data.database_root is the folder of the databases.") from error
    # What follows is not a model's: PRAGMA is needed, and the file stays open for reading only.
    connection.set_authorizer(None)
    with contextlib.closing(connection):
        try:
            found = connection.execute(_TABLES).fetchall()
            tables, broken = [], ""
            for name, kind in found:
                # A view is shown without rows: there is no telling how long it takes to give one.
                wanted = (num_rows, num_examples) if kind == "table" else (0, 0)
                try:
                    tables.append(_table(connection, name, database, *wanted))
                # A view of what is gone, a module or collation that is not built in: no query can read that one either.
                except sqlite3.OperationalError as error:
                    broken = f"{error}"
        except sqlite3.Error as error:
            raise DataError(f"{database}: its schema cannot be read: {error}.") from error
    if broken and not tables:
        raise DataError(f"{database}: its schema cannot be read: {broken}.")
    return tuple(tables)


_TABLES = """
SELECT name, type FROM sqlite_master
WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' {} ORDER BY rowid
""".format(
    # What full-text and other virtual tables keep their data in; told apart since SQLite 3.37.
    "AND name NOT IN (SELECT name FROM pragma_table_list WHERE type = 'shadow')"
    if sqlite3.sqlite_version_info >= (3, 37)
    else ""
)


def _table(connection: sqlite3.Connection, name: str, database: str, num_rows: int, num_examples: int) -> Table:
    quoted = guard.quoted(name)
    descriptions = _descriptions(Path(database).parent / "database_description", name)
    # The names as values, not as SQL text: they may hold anything.
    infos = connection.execute(
        'SELECT name, type, pk, "notnull" FROM pragma_table_xinfo(?) WHERE hidden <> 1', (name,)
    ).fetchall()
    columns = []
    keys = [column for key, column in sorted((key, column) for column, _, key, _ in infos) if key]
    for column, kind, key, not_null in infos:
        meaning, values = descriptions.get(column.lower(), ("", ""))
        query = f"SELECT {guard.quoted(column)} FROM {quoted} WHERE {guard.quoted(column)} IS NOT NULL LIMIT ?"
        values_found = connection.execute(query, (num_examples * 5,)) if num_examples else ()
        found = dict.fromkeys(_cell(value) for (value,) in values_found)
        constraint = "PRIMARY KEY" if key and len(keys) == 1 else "NOT NULL" if not_null else ""
        columns.append(Column(column, _line(kind), constraint, meaning, values, tuple(found)[:num_examples]))
    rows = connection.execute(f"SELECT * FROM {quoted} LIMIT ?", (num_rows,)).fetchall() if num_rows else []
    whole_key = tuple(keys) if len(keys) > 1 else ()
    cells = tuple(tuple(map(_cell, row)) for row in rows)
    return Table(name, tuple(columns), whole_key, _references(connection, name), cells)


def _references(connection: sqlite3.Connection, name: str) -> tuple[str, ...]:
    query = 'SELECT "from", "table", "to" FROM pragma_foreign_key_list(?) ORDER BY id, seq'
    found = connection.execute(query, (name,)).fetchall()
    return tuple(
        f"{guard.named(mine)} -> {guard.named(other)}" + (f".{guard.named(theirs)}" if theirs else "")
        for mine, other, theirs in found
    )


def _cell(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    # Text that is not UTF-8 holds half surrogates here, which no tokenizer can read.
    text = _line(str(value).encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    return text if len(text) <= CELL_CHARS else f"{text[: CELL_CHARS - 3]}..."


def _descriptions(folder: Path, table: str) -> Mapping[str, tuple[str, str]]:
    """Column in lower case -> (what it means, what its values mean); empty without a file for the table."""
    files = {file.stem.lower(): file for file in folder.glob("*.csv")} if folder.is_dir() else {}
    file = files.get(table.lower())
    if file is None:
        return {}
    data = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise DataError(f"{file} is not CSV: {error}.") from error
    return {
        _field(row, "original_column_name").lower(): (_meaning(row), _field(row, "value_description")) for row in rows
    }


def _meaning(row: Mapping[str, object]) -> str:
    """The longer of the two names a column has there, and its description."""
    plain, described = _field(row, "column_name"), _field(row, "column_description")
    same = plain.lower() == _field(row, "original_column_name").lower() or plain.lower() == described.lower()
    return described if same or not plain else f"{plain}: {described}" if described else plain


def _field(row: Mapping[str, object], name: str) -> str:
    value = row.get(name)
    return _line(value)[:DESCRIPTION_CHARS] if isinstance(value, str) else ""
