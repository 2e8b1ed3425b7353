"""Small SQLite databases made on the spot: two tables a database, one the parent of the other, filled by its number.

A database is a pure function of its number: names of tables and columns, rows, and what its columns mean. A quarter of
the numbers are eval, so no run trains on a database it is evaluated on, as in BIRD; both kinds draw on the same words.
Some names need quotes (`order`, `full name`), some values are NULL. On disk they have BIRD's layout:
`{db_id}/{db_id}.sqlite` and `{db_id}/database_description/{table}.csv`.
"""

from __future__ import annotations

import csv
import functools
import io
import random
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlctl.cache import cache_folder, write_whole

Split = Literal["train", "eval"]

FORMAT = 1
"""Part of the folder's name; raised when the same number makes another database."""

NUM_DATABASES = 64
"""Every fourth is eval: 48 to train on, 16 to evaluate on."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a generated table. `holds` says what questions may ask of it."""

    name: str
    type: Literal["INTEGER", "REAL", "TEXT"]
    holds: Literal["key", "name", "reference", "number", "category"]
    description: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its rows; `thing` is what a row is called in a question, `things` its plural."""

    name: str
    thing: str
    things: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[int | float | str | None, ...], ...]

    def values(self, column: Column) -> list[int | float | str]:
        """The values of a column without its NULLs, in the order of the rows."""
        at = self.columns.index(column)
        return [value for row in self.rows if (value := row[at]) is not None]

    def one(self, holds: str) -> Column:
        return next(column for column in self.columns if column.holds == holds)

    def all(self, holds: str) -> list[Column]:
        return [column for column in self.columns if column.holds == holds]


@dataclass(frozen=True, slots=True)
class Database:
    """A parent table and a child table whose rows refer to it."""

    name: str
    parent: Table
    child: Table


def split_of(number: int) -> Split:
    return "eval" if number % 4 == 3 else "train"


def numbers_of(split: Split) -> list[int]:
    return [number for number in range(NUM_DATABASES) if split_of(number) == split]


@functools.cache
def database(number: int) -> Database:
    """Database `number`, 0..NUM_DATABASES-1."""
    # A text seed is hashed with SHA-512 by `random`, so neither PYTHONHASHSEED nor the global generator matters.
    rng = random.Random(f"text-to-sql/{FORMAT}/{number}")
    parent_name, parent_things = rng.choice(_PARENTS)
    child_name, child_things = rng.choice(_CHILDREN)
    parent = _parent(rng, parent_name, parent_things)
    return Database(
        f"{parent_name}_{child_name}_{number}".replace(" ", "_"),
        parent,
        _child(rng, child_name, child_things, parent),
    )


def _parent(rng: random.Random, thing: str, things: str) -> Table:
    columns = (
        Column("id", "INTEGER", "key", f"unique number of the {thing}"),
        Column("name", "TEXT", "name", f"name of the {thing}"),
        Column("city", "TEXT", "category", f"city in which the {thing} is"),
    )
    count = rng.randint(3, 6)
    names = rng.sample(_PROPER, count)
    cities = [rng.choice(_CATEGORIES["city"]) for _ in range(count)]
    return Table(thing, thing, things, columns, tuple(zip(range(1, count + 1), names, cities, strict=True)))


def _child(rng: random.Random, thing: str, things: str, parent: Table) -> Table:
    first, second = rng.sample(sorted(_NUMBERS), 2)
    category = rng.choice(sorted(set(_CATEGORIES) - {"city"}))
    name = "full name" if rng.random() < 0.15 else "name"
    columns = (
        Column("id", "INTEGER", "key", f"unique number of the {thing}"),
        Column(name, "TEXT", "name", f"name of the {thing}"),
        Column(f"{parent.name}_id", "INTEGER", "reference", f"the {parent.thing} it belongs to"),
        Column(category, "TEXT", "category", f"{category} of the {thing}"),
        *(
            Column(number, "INTEGER", "number", f"{number} of the {thing} in {_NUMBERS[number]}")
            for number in (first, second)
        ),
    )
    count = rng.randint(12, 40)
    names = rng.sample(_FIRST_NAMES, count)
    used = rng.sample(_CATEGORIES[category], 3)
    rows = [
        (
            number,
            names[number - 1],
            rng.randint(1, len(parent.rows)),
            rng.choice(used),
            rng.randint(1, 99),
            None if rng.random() < 0.1 else rng.randint(1, 99),
        )
        for number in range(1, count + 1)
    ]
    return Table(thing, thing, things, columns, tuple(rows))


# On disk


@functools.cache
def database_path(number: int) -> Path:
    """The file of database `number` in the cache folder, written when it is not there. Raises OSError."""
    return _written(number, cache_folder() / f"text-to-sql-{FORMAT}")


def _written(number: int, root: Path) -> Path:
    made = database(number)
    folder = root / made.name
    path = folder / f"{made.name}.sqlite"
    if not path.exists():
        for table in (made.parent, made.child):
            write_whole(folder / "database_description" / f"{table.name}.csv", _description(table))
        write_whole(path, _file(made))
    return path


def _file(made: Database) -> bytes:
    """The database as SQLite writes it, made aside: no reader ever sees half of it."""
    with tempfile.TemporaryDirectory() as aside:
        path = Path(aside) / "made.sqlite"
        connection = sqlite3.connect(path)
        for table, parent in ((made.parent, None), (made.child, made.parent)):
            connection.execute(_create(table, parent))
            marks = ", ".join("?" * len(table.columns))
            connection.executemany(f"INSERT INTO {_quoted(table.name)} VALUES ({marks})", table.rows)
        connection.commit()
        connection.close()
        return path.read_bytes()


def _create(table: Table, parent: Table | None) -> str:
    lines = [
        f"{_quoted(column.name)} {column.type}" + (" PRIMARY KEY" if column.holds == "key" else "")
        for column in table.columns
    ]
    if parent is not None:
        reference = _quoted(table.one("reference").name)
        lines.append(f"FOREIGN KEY ({reference}) REFERENCES {_quoted(parent.name)} ({_quoted('id')})")
    return f"CREATE TABLE {_quoted(table.name)} ({', '.join(lines)})"


def _quoted(name: str) -> str:
    return f'"{name}"'


def _description(table: Table) -> bytes:
    """BIRD's columns: original_column_name, column_name, column_description, data_format, value_description."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["original_column_name", "column_name", "column_description", "data_format", "value_description"])
    for column in table.columns:
        values = ", ".join(sorted({str(v) for v in table.values(column)})) if column.holds == "category" else ""
        writer.writerow([column.name, column.name, column.description, column.type.lower(), values])
    return text.getvalue().encode()


_PARENTS = (
    ("school", "schools"), ("shop", "shops"), ("farm", "farms"), ("club", "clubs"), ("museum", "museums"),
    ("hotel", "hotels"), ("ship", "ships"), ("group", "groups"), ("office", "offices"), ("park", "parks"),
)  # fmt: skip
_CHILDREN = (
    ("pupil", "pupils"), ("book", "books"), ("horse", "horses"), ("player", "players"), ("painting", "paintings"),
    ("guest", "guests"), ("sailor", "sailors"), ("order", "orders"), ("worker", "workers"), ("tree", "trees"),
    ("car", "cars"), ("song", "songs"),
)  # fmt: skip
_NUMBERS = {
    "age": "years", "price": "dollars", "weight": "kilograms", "height": "centimetres", "score": "points",
    "size": "metres", "speed": "kilometres per hour", "cost": "dollars",
}  # fmt: skip
_CATEGORIES = {
    "city": ("Oslo", "Rome", "Lima", "Cairo", "Delhi", "Quito", "Paris", "Tunis"),
    "color": ("red", "blue", "green", "black", "white", "brown"),
    "kind": ("old", "new", "rare", "plain", "special"),
    "level": ("low", "middle", "high", "top"),
    "country": ("Chile", "Ghana", "Japan", "Kenya", "Peru", "Spain"),
    "team": ("north", "south", "east", "west"),
}
_PROPER = ("Aurora", "Beacon", "Comet", "Delta", "Ember", "Falcon", "Grove", "Harbor", "Island", "Juniper")
_FIRST_NAMES = tuple(
    name
    for line in (
        "Anna Ben Carla David Emma Felix Grace Hugo Ines Jack Karim Lena Mia Noah Olga Paul Rosa Sam Tara Umar Vera",
        "Will Yuki Zoe Adam Bela Cora Dora Elia Finn Gina Hana Ivan Jana Kofi Luca Maja Nils Otto Pia Ravi Sara Theo",
    )
    for name in line.split()
)
