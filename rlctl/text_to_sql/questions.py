"""Questions about the generated databases with their gold queries: endless, and nothing to download.

Every gold gives at least one row and depends on no order it does not state. Some questions use a word that only the
evidence beside them explains, as BIRD's external knowledge does.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from rlctl.rewards.sql.guard import named
from rlctl.text_to_sql.databases import Column, Database, Split, Table, database, database_path, numbers_of
from rlctl.types import Problem


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, its gold query, the evidence it needs, and in short what to do: table, column, condition."""

    question: str
    sql: str
    plan: str
    evidence: str = ""


def text_to_sql_problem(seed: int, index: int, *, split: Split) -> Problem:
    """Problem number `index` of the endless list that `seed` names; its database is written when it is not there."""
    number, asked = asked_of(seed, index, split=split)
    return Problem(
        id=f"text-to-sql/{split}/{seed}/{index}",
        question=asked.question,
        answer=asked.sql,
        source="text-to-sql",
        extra={
            "database": str(database_path(number)),
            "db_id": database(number).name,
            "evidence": asked.evidence,
        },
    )


def asked_of(seed: int, index: int, *, split: Split) -> tuple[int, Asked]:
    """(number of the database, what is asked of it) behind `text_to_sql_problem(seed, index, split=split)`."""
    rng = random.Random(f"text-to-sql/{split}/{seed}/{index}")
    number = rng.choice(numbers_of(split))
    while True:
        asked = rng.choice(_KINDS)(rng, database(number))
        if asked is not None:
            return number, asked


# The kinds of question. Each draws one, or returns None when the numbers drawn do not suit it.


def _count(rng: random.Random, made: Database) -> Asked | None:
    table = rng.choice((made.parent, made.child))
    return Asked(f"How many {table.things} are there?", f"SELECT COUNT(*) FROM {named(table.name)}", "count all")


def _count_of_category(rng: random.Random, made: Database) -> Asked | None:
    table = made.child
    column = table.one("category")
    value = rng.choice(table.values(column))
    return Asked(
        f"How many {table.things} have the {column.name} {value}?",
        f"SELECT COUNT(*) FROM {named(table.name)} WHERE {named(column.name)} = '{value}'",
        f"count {column.name} {value}",
    )


def _aggregate(rng: random.Random, made: Database) -> Asked | None:
    table = made.child
    column, word = rng.choice(table.all("number")), rng.choice(sorted(_AGGREGATES))
    return Asked(
        f"What is the {word} {column.name} of the {table.things}?",
        f"SELECT {_AGGREGATES[word]}({named(column.name)}) FROM {named(table.name)}",
        f"{_AGGREGATES[word]} of {column.name}",
    )


def _names_beyond(rng: random.Random, made: Database) -> Asked | None:
    table, name = made.child, made.child.one("name")
    column, (word, operator) = rng.choice(table.all("number")), rng.choice(_COMPARED)
    bound = rng.randint(5, 95)
    if not _any_beyond(table, column, operator, bound):
        return None
    return Asked(
        f"List the {name.name}s of the {table.things} with a {column.name} {word} {bound}.",
        f"SELECT {named(name.name)} FROM {named(table.name)} WHERE {named(column.name)} {operator} {bound}",
        f"{name.name} where {column.name} {operator} {bound}",
    )


def _extreme(rng: random.Random, made: Database) -> Asked | None:
    table, name = made.child, made.child.one("name")
    column, (word, direction) = rng.choice(table.all("number")), rng.choice((("highest", "DESC"), ("lowest", "ASC")))
    values = table.values(column)
    best = max(values) if direction == "DESC" else min(values)
    # NULLs come first in ascending order, and a tie would leave the row undecided.
    if values.count(best) > 1 or (direction == "ASC" and len(values) < len(table.rows)):
        return None
    order = f"ORDER BY {named(column.name)} {direction} LIMIT 1"
    return Asked(
        f"Which of the {table.things} has the {word} {column.name}? Give the {name.name}.",
        f"SELECT {named(name.name)} FROM {named(table.name)} {order}",
        f"{name.name} by {column.name} {direction}",
    )


def _per_category(rng: random.Random, made: Database) -> Asked | None:
    table, column = made.child, made.child.one("category")
    number, word = rng.choice(table.all("number")), rng.choice(sorted(_AGGREGATES))
    chosen = f"{named(column.name)}, {_AGGREGATES[word]}({named(number.name)})"
    return Asked(
        f"For each {column.name}, what is the {word} {number.name} of the {table.things}?",
        f"SELECT {chosen} FROM {named(table.name)} GROUP BY {named(column.name)}",
        f"{_AGGREGATES[word]} of {number.name} by {column.name}",
    )


def _sorted_names(rng: random.Random, made: Database) -> Asked | None:
    table, name, column = made.child, made.child.one("name"), made.child.one("category")
    value = rng.choice(table.values(column))
    return Asked(
        f"List the {name.name}s of the {table.things} with the {column.name} {value} in alphabetical order.",
        f"SELECT {named(name.name)} FROM {named(table.name)} WHERE {named(column.name)} = '{value}' "
        f"ORDER BY {named(name.name)}",
        f"{name.name} where {column.name} {value} sorted",
    )


def _of_parent(rng: random.Random, made: Database) -> Asked | None:
    parent, child = made.parent, made.child
    column = rng.choice((parent.one("name"), parent.one("category")))
    value = rng.choice(parent.values(column))
    reference = f"{named(child.name)}.{named(child.one('reference').name)}"
    joined = f"JOIN {named(parent.name)} ON {reference} = {named(parent.name)}.id"
    where = f"{named(parent.name)}.{named(column.name)} = '{value}'"
    which = f"the {parent.thing} {value}" if column.holds == "name" else f"{parent.things} in {value}"
    return Asked(
        f"How many {child.things} belong to {which}?",
        f"SELECT COUNT(*) FROM {named(child.name)} {joined} WHERE {where}",
        f"count join {parent.name} {column.name} {value}",
    )


def _by_evidence(rng: random.Random, made: Database) -> Asked | None:
    table, column = made.child, rng.choice(made.child.all("number"))
    word, operator = rng.choice((("great", ">"), ("modest", "<")))
    bound = rng.randint(20, 80)
    return Asked(
        f"How many {word} {table.things} are there?",
        f"SELECT COUNT(*) FROM {named(table.name)} WHERE {named(column.name)} {operator} {bound}",
        f"count {column.name} {operator} {bound}",
        evidence=f"{word} means {column.name} {operator} {bound}",
    )


_KINDS: tuple[Callable[[random.Random, Database], Asked | None], ...] = (
    _count, _count_of_category, _aggregate, _names_beyond, _extreme, _per_category, _sorted_names, _of_parent,
    _by_evidence,
)  # fmt: skip
_AGGREGATES = {"highest": "MAX", "lowest": "MIN", "average": "AVG", "total": "SUM"}
_COMPARED = (("above", ">"), ("below", "<"))


def _any_beyond(table: Table, column: Column, operator: str, bound: int) -> bool:
    return any(value > bound if operator == ">" else value < bound for value in table.values(column))  # type: ignore[operator]
