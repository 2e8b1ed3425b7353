"""Read problems from a file: JSON Lines, JSON, CSV, TSV or Parquet; every fault with its file and line.

Stricter than a data-frame library on purpose: an empty answer, a missing column or a repeated id is an error here
and not a NaN, a null or the last row's value later. All rows are looked at before anything is reported.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import NoReturn

from rlctl.errors import DataError
from rlctl.types import Problem

MAX_FAULTS_SHOWN = 5

Check = Callable[[Problem], str | None]
"""Says what is wrong with a problem, None when nothing is."""

Keeps = Callable[["Row"], "bool | Fault"]
"""Whether a row is wanted; a Fault when that cannot be told."""


@dataclass(frozen=True, slots=True)
class DatabaseColumns:
    """Which column holds a problem's database, as a path or as its name within `root`, and which its evidence."""

    name: str
    root: str | None = None
    evidence: str | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns hold what; `a.b` is column b within a. Without `id`, problems are named by their line."""

    question: str = "question"
    answer: str = "answer"
    id: str | None = None
    extra: tuple[str, ...] = ()
    database: DatabaseColumns | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One row as the file has it; `line` counts from 1, in lines of text or rows of a table."""

    line: int
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that is no row, and why."""

    line: int
    message: str


def read_file(path: Path, *, columns: Columns, check: Check | None = None, keeps: Keeps | None = None) -> list[Problem]:
    """The problems of one file, in its order.

    Raises DataError with up to five faults, each with file and line, or when there is no such file or no row.
    """
    return problems_from(read_rows(path), where=str(path), prefix=path.stem, columns=columns, check=check, keeps=keeps)


def read_rows(path: Path) -> list[Row | Fault]:
    """The rows of one file, and the lines that are none. Raises DataError when it cannot be read at all."""
    if not path.is_file():
        _no_such_file(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: rows cannot be read from {path.suffix or 'a file without suffix'}.", hint=_formats())
    try:
        return list(reader(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def problems_from(
    rows: Iterable[Row | Fault],
    *,
    where: str,
    prefix: str,
    columns: Columns,
    check: Check | None = None,
    keeps: Keeps | None = None,
) -> list[Problem]:
    """Rows -> problems. `where` is the file as messages name it, `prefix` begins the ids that lines give
    and is the source that metrics are named by. Rows that are not kept are looked at no further."""
    problems: list[Problem] = []
    faults: list[Fault] = []
    line_of: dict[str, int] = {}
    num_rows = 0
    for row in rows:
        num_rows += 1
        wanted = keeps(row) if keeps and isinstance(row, Row) else True
        if wanted is False:
            continue
        bad = row if isinstance(row, Fault) else wanted
        problem = bad if isinstance(bad, Fault) else problem_of(row, prefix=prefix, columns=columns)  # type: ignore[arg-type]
        if isinstance(problem, Problem):
            first = line_of.setdefault(problem.id, row.line)
            if first != row.line:
                problem = Fault(row.line, f"id {problem.id!r} is also on line {first}")
            elif check and (complaint := check(problem)):
                problem = Fault(row.line, f"problem {problem.id}: {complaint}")
        if isinstance(problem, Fault):
            faults.append(problem)
        else:
            problems.append(problem)
    if faults:
        _report(faults, where=where)
    if not problems and num_rows:
        raise DataError(
            f"{where}: 0 of {num_rows} rows left after data.where and data.match.", hint="loosen the filter."
        )
    if not problems:
        raise DataError(f"{where} has no rows.")
    return problems


def _report(faults: list[Fault], *, where: str) -> NoReturn:
    lines = [f"{where}:{fault.line}: {fault.message}" for fault in faults[:MAX_FAULTS_SHOWN]]
    if len(faults) > MAX_FAULTS_SHOWN:
        lines.append(f"and {len(faults) - MAX_FAULTS_SHOWN} more lines like these")
    missing = any(fault.message.startswith("no column") for fault in faults)
    cure = "name the columns: --set data.question_key=... --set data.answer_key=..." if missing else "mend these lines."
    raise DataError("\n".join(lines), hint=cure)


def problem_of(row: Row, *, prefix: str, columns: Columns) -> Problem | Fault:
    """The problem in a row, or what is wrong with it."""
    wanted = [columns.question, columns.answer, *([columns.id] if columns.id else [])]
    for column in (*wanted, *columns.extra):
        if cell(row, column) is MISSING:
            return Fault(row.line, f"no column {column!r}; {_columns_there(column, row.values)}")
    messages = _messages(cell(row, columns.question))
    question = messages[-1][1] if messages else cell(row, columns.question)
    answer = _number_as_text(cell(row, columns.answer))
    name = _number_as_text(cell(row, columns.id)) if columns.id else f"{prefix}:{row.line}"
    for column, value in zip(wanted, (question, answer, name), strict=False):
        if complaint := _text_complaint(value):
            return Fault(row.line, f"{column} {complaint}")
    extra = {column: cell(row, column) for column in columns.extra}
    if columns.database:
        found = _database_of(row, columns.database)
        if isinstance(found, Fault):
            return found
        extra |= found
    return Problem(
        id=str(name), question=str(question), answer=str(answer), source=prefix, extra=extra, messages=messages
    )


def _database_of(row: Row, columns: DatabaseColumns) -> dict[str, object] | Fault:
    """What the reward `sql` and its prompt need: the database's path and the evidence, which may be absent."""
    name = cell(row, columns.name)
    if name is MISSING:
        return Fault(row.line, f"no column {columns.name!r}; {_columns_there(columns.name, row.values)}")
    if complaint := _text_complaint(name):
        return Fault(row.line, f"{columns.name} {complaint}")
    path = Path(columns.root or "", str(name)).expanduser()
    if path.is_dir() or not (path.suffix or path.is_file()):
        path = path / f"{path.name}.sqlite"
    evidence = cell(row, columns.evidence) if columns.evidence else ""
    return {"database": str(path.absolute()), "evidence": evidence if isinstance(evidence, str) else ""}


MISSING = object()
"""What `cell` gives for a column that is not there; None is a value."""


def cell(row: Row, column: str) -> object:
    """The value of a column, or of `a.b` within a nested one."""
    if column in row.values:
        return row.values[column]
    value: object = row.values
    for key in column.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return MISSING
        value = value[key]
    return value


def _messages(value: object) -> tuple[tuple[str, str], ...]:
    """A conversation that ends with a user's message, as many data sets write prompts; empty for anything else."""
    if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
        return ()
    messages = tuple((message.get("role"), message.get("content")) for message in value)
    whole = all(isinstance(part, str) and part for message in messages for part in message)
    return messages if messages and whole and messages[-1][0] == "user" else ()


def _columns_there(wanted: str, values: Mapping[str, object]) -> str:
    names = ", ".join(values) or "none"
    near = difflib.get_close_matches(wanted, list(values), n=1, cutoff=0.5)
    return f"columns: {names}" + (f"; did you mean {near[0]!r}?" if near else "")


def _number_as_text(value: object) -> object:
    """Data sets write answers and ids as numbers too; a bool or a NaN stays what it is, and is refused."""
    if isinstance(value, float | Decimal):
        return str(value) if math.isfinite(value) else value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _text_complaint(value: object) -> str | None:
    if value is None:
        return "is null"
    if not isinstance(value, str):
        no_number = isinstance(value, float | Decimal)
        return f"is {value}, which is no number" if no_number else f"is a {type(value).__name__}, not text"
    if not value.strip():
        return "is empty"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "has half a surrogate pair, which no tokenizer can read"
    return None


def _no_such_file(path: Path) -> NoReturn:
    if path.is_dir():
        inside = sorted(one.name for one in path.iterdir() if one.suffix.lower() in READERS)
        found = f"it holds {', '.join(inside[:5])}" if inside else "nothing in it can be read"
        raise DataError(f"{path} is a folder; {found}.", hint="give one file: --set data.path=...")
    names = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.5)
    hint = f"did you mean {path.parent / near[0]}?" if near else f"the folder {path.parent} has nothing of that name."
    raise DataError(f"{path}: no such file.", hint=hint if names else f"there is no file in {path.parent} either.")


def _formats() -> str:
    return f"give one of {', '.join(READERS)}."


def _json_lines(path: Path) -> Iterator[Row | Fault]:
    # Split at newlines only: str.splitlines would also cut at U+2028, which may stand inside a JSON string.
    for number, line in enumerate(_without_mark(path.read_bytes()).split(b"\n"), start=1):
        if line.strip():
            yield _json_row(number, line)


def _json(path: Path) -> Iterator[Row | Fault]:
    """An array of objects, its elements numbered as lines; or JSON Lines under the wrong suffix."""
    data = _without_mark(path.read_bytes())
    if not data.lstrip().startswith(b"["):
        yield from _json_lines(path)
        return
    items = _parsed(data)
    if isinstance(items, list):
        for number, item in enumerate(items, start=1):
            yield Row(number, item) if isinstance(item, dict) else _not_an_object(number, item)
    else:
        yield Fault(1, str(items))


def _json_row(number: int, line: bytes) -> Row | Fault:
    value = _parsed(line)
    if isinstance(value, ValueError):
        return Fault(number, str(value))
    return Row(number, value) if isinstance(value, dict) else _not_an_object(number, value)


def _parsed(data: bytes) -> object:
    """The JSON value, or a ValueError that says what is wrong."""
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return ValueError(f"not UTF-8 (byte {error.object[error.start]:#04x} at {error.start})")
    except ValueError as error:
        return ValueError(f"not JSON: {error}")
    except RecursionError:
        return ValueError("not JSON: nested too deeply")


def _not_an_object(number: int, value: object) -> Fault:
    return Fault(number, f"a {type(value).__name__}, not an object with columns")


def _without_mark(data: bytes) -> bytes:
    """Without the byte order mark that some editors put first."""
    return data.removeprefix(b"\xef\xbb\xbf")


def _comma_separated(path: Path) -> Iterator[Row | Fault]:
    return _separated(path, delimiter=",")


def _tab_separated(path: Path) -> Iterator[Row | Fault]:
    return _separated(path, delimiter="\t")


def _separated(path: Path, *, delimiter: str) -> Iterator[Row | Fault]:
    data = _without_mark(path.read_bytes())
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        yield Fault(line, f"not UTF-8 (byte {data[error.start]:#04x})")
        return
    csv.field_size_limit(max(csv.field_size_limit(), len(data)))
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = next((row for row in rows if row), [])
        if len(set(header)) < len(header):
            yield Fault(rows.line_num, f"a column is named twice: {', '.join(header)}")
            return
        last_line = rows.line_num
        for row in rows:
            line, last_line = last_line + 1, rows.line_num
            if len(row) == len(header):
                yield Row(line, dict(zip(header, row, strict=True)))
            elif len(row) > 1 or "".join(row).strip():
                yield Fault(line, f"{len(row)} fields, but {len(header)} columns")
    except csv.Error as error:
        yield Fault(rows.line_num, f"not CSV: {error}")


def _parquet(path: Path) -> Iterator[Row | Fault]:
    import pyarrow.lib
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.lib.ArrowException, UnicodeDecodeError) as error:
        yield Fault(1, f"not Parquet: {str(error).splitlines()[0]}")
        return
    for number, values in enumerate(rows, start=1):
        yield Row(number, values)


READERS: Mapping[str, Callable[[Path], Iterator[Row | Fault]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _comma_separated,
    ".tsv": _tab_separated,
    ".parquet": _parquet,
}
