"""How a database is described, and what goes first when it is too long."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from rlctl.errors import DataError
from rlctl.rewards.sql.guard import named
from rlctl.settings.sql_prompt import SqlPromptSettings
from rlctl.sources import LazyProblems
from rlctl.text_to_sql.prompt import PromptBuilder
from rlctl.text_to_sql.schema import Detail, schema_text
from rlctl.types import Problem
from tests.rewards.sql.helpers import database, fingerprint
from tests.text_to_sql.helpers import HOSTILE, bird

RICH = Detail(sample_rows=10, example_values=10, descriptions=True, foreign_keys=True)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return bird(tmp_path, splits=["train"]) / "train/train_databases/shop/shop.sqlite"


def test_a_schema_tells_keys_rows_values_and_meanings(shop: Path) -> None:
    assert (
        schema_text(str(shop), RICH)
        == """/* first 2 rows of town:
id | name
1 | Rome
2 | Oslo
*/
CREATE TABLE town (
    id INTEGER PRIMARY KEY, -- e.g. 1, 2
    name TEXT NOT NULL -- e.g. Rome, Oslo
);

-- "order" refers to others: town_id -> town.id
/* first 3 rows of order:
id | full name | town_id | price
1 | Ann | 1 | 2.5
2 | NULL | 2 | 7
3 | Bo | 1 | NULL
*/
CREATE TABLE "order" (
    id INTEGER PRIMARY KEY, -- e.g. 1, 2, 3
    "full name" TEXT, -- who ordered | e.g. Ann, Bo
    town_id INTEGER, -- e.g. 1, 2
    price -- unit price: price in \u20ac | net, no tax | e.g. 2.5, 7
);"""
    )


def test_less_detail_leaves_out_rows_values_and_meanings(shop: Path) -> None:
    plain = schema_text(str(shop), Detail(0, 0, descriptions=False, foreign_keys=False))
    assert plain == (
        "CREATE TABLE town (\n    id INTEGER PRIMARY KEY,\n    name TEXT NOT NULL\n);\n\n"
        'CREATE TABLE "order" (\n    id INTEGER PRIMARY KEY,\n    "full name" TEXT,\n'
        "    town_id INTEGER,\n    price\n);"
    )
    compact = schema_text(str(shop), Detail(0, 0, descriptions=False, foreign_keys=True, compact=True))
    assert compact == (
        "town (id INTEGER, name TEXT)\n"
        '"order" (id INTEGER, "full name" TEXT, town_id INTEGER, price, town_id -> town.id)'
    )


def test_describing_a_database_does_not_touch_it(shop: Path) -> None:
    before = fingerprint(shop.parent)
    schema_text(str(shop), RICH)
    assert fingerprint(shop.parent) == before


def test_hostile_names_and_values_stay_within_their_quotes_and_comments(tmp_path: Path) -> None:
    quoted = '"' + HOSTILE.replace('"', '""') + '"'
    path = database(
        tmp_path / "h.sqlite",
        f'CREATE TABLE {quoted}({quoted} TEXT, "a b" BLOB, é TEXT, "1st" INT, "" INT, "select" INT)',
        f"INSERT INTO {quoted} VALUES ('*/ DROP TABLE t; --' || char(10), x'00ff', CAST(x'ff41' AS TEXT), 1, 2, 3)",
        "CREATE VIEW v AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) AS c FROM r",
    )
    text = schema_text(str(path), RICH)
    text.encode()
    assert f"CREATE TABLE {quoted} (" in text
    assert "<2 bytes>" in text
    # Comments apart, it is the DDL of tables that SQLite takes.
    connection = sqlite3.connect(":memory:")
    connection.executescript(text)
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({quoted})")]
    assert columns == [HOSTILE, "a b", "é", "1st", "", "select"]


@pytest.mark.parametrize(
    ("name", "written"),
    [("town", "town"), ("order", '"order"'), ("Group", '"Group"'), ("a b", '"a b"'), ("1a", '"1a"'), ('a"b', '"a""b"'),
     ("select", '"select"'), ("", '""'), ("é", '"é"')],
)  # fmt: skip
def test_names_are_quoted_where_sqlite_needs_it(name: str, written: str) -> None:
    assert named(name) == written


def builder(budget: int, measure: Callable[[str], int] = len, **settings: object) -> PromptBuilder:
    return PromptBuilder(SqlPromptSettings.model_validate(settings), budget=budget, measure=measure)


def asked(shop: Path, evidence: str = "") -> Problem:
    return Problem("p", "How many?", "SELECT 1", extra={"database": str(shop), "evidence": evidence})


def test_a_prompt_has_schema_question_evidence_and_instructions_in_that_order(shop: Path) -> None:
    (problem,) = builder(10_000)([asked(shop, "all count")])
    parts = [
        "SQLite",
        "CREATE TABLE town",
        "schema above",
        "How many?",
        "Evidence:\nall count",
        "\n- Return",
        "<think>",
    ]
    places = [problem.question.index(part) for part in parts]
    assert places == sorted(places)
    assert "Evidence" not in builder(10_000)([asked(shop)])[0].question
    (compact,) = builder(10_000, layout="compact")([asked(shop, "all count")])
    assert compact.question.endswith("\nHow many?\nall count")


def test_sample_rows_go_first_then_values_then_meanings(shop: Path) -> None:
    whole = builder(10**6)([asked(shop)])[0].question
    states, lengths = [], []
    for budget in range(len(whole) + 400, 300, -5):
        build = builder(budget)
        text = build([asked(shop)])[0].question
        has = ("first 3 rows" in text, "first 1 rows" in text, "e.g." in text, "who ordered" in text)
        cuts = build.cuts
        assert bool(cuts.prompts) is bool(cuts.sample_rows) is (text != whole)
        assert bool(cuts.example_values) is not has[2]
        assert bool(cuts.descriptions) is not has[3]
        assert "CREATE TABLE town" in text
        if not states or states[-1] != has:
            states.append(has)
            lengths.append(len(text))
    assert states == [
        (True, False, True, True),
        (False, True, True, True),
        (False, False, True, True),
        (False, False, False, True),
        (False, False, False, False),
    ]
    assert lengths == sorted(lengths, reverse=True)


def test_what_was_cut_is_counted_and_told(shop: Path) -> None:
    budget = len(builder(10_000)([asked(shop)])[0].question) - 50
    build = builder(budget)
    build([asked(shop), asked(shop), Problem("other", "no database", "1")])
    assert (
        build.note() == f"schemas of 2 of 2 prompts (1 databases) were cut to fit {budget} tokens: 2 lost sample rows"
    )
    assert builder(10_000).note() == ""


def test_a_prompt_that_fits_exactly_is_not_cut(shop: Path) -> None:
    loose = builder(10_000)
    (problem,) = loose([asked(shop)])
    around = len(builder(10_000, layout="none")([asked(shop)])[0].question)
    assert loose.note() == ""
    assert len(problem.question) > around


def test_problems_made_on_the_spot_stay_so(shop: Path) -> None:
    lazy = LazyProblems(lambda index: asked(shop), size=3)
    ready = builder(10_000)(lazy)
    assert isinstance(ready, LazyProblems)
    assert len(ready) == 3
    assert "CREATE TABLE" in ready[2].question


def test_without_a_layout_or_a_database_a_question_stays_as_it_is(shop: Path) -> None:
    assert builder(10_000, layout="none")([asked(shop)])[0].question == "How many?"
    assert builder(10_000)([Problem("p", "2 + 2?", "4")])[0].question == "2 + 2?"


def test_a_database_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.sqlite"):
        builder(10_000)([asked(tmp_path / "absent.sqlite")])


MISSING_MODULE = "INSERT INTO sqlite_master VALUES ('table', 'm', 'm', 0, 'CREATE VIRTUAL TABLE m USING absent(x)')"


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE VIEW v AS SELECT b FROM gone",),
        ("PRAGMA writable_schema = 1", MISSING_MODULE),
    ],
)
def test_what_sqlite_itself_cannot_read_is_left_out_of_the_schema(tmp_path: Path, statements: tuple[str, ...]) -> None:
    path = database(tmp_path / "x.sqlite", "CREATE TABLE t(a)", *statements)
    assert schema_text(str(path), Detail(0, 0, descriptions=False, foreign_keys=False, compact=True)) == "t (a)"


def test_a_schema_of_which_nothing_can_be_read_is_an_error(tmp_path: Path) -> None:
    path = database(tmp_path / "x.sqlite", "CREATE VIEW v AS SELECT b FROM gone")
    with pytest.raises(DataError, match=r"schema cannot be read: no such table: main\.gone"):
        schema_text(str(path), Detail(0, 0, descriptions=False, foreign_keys=False))


def test_a_key_of_several_columns_is_one_key_in_its_own_order(tmp_path: Path) -> None:
    path = database(tmp_path / "x.sqlite", "CREATE TABLE t(a NOT NULL, b, PRIMARY KEY(b, a))")
    schema = schema_text(str(path), Detail(0, 0, descriptions=False, foreign_keys=False))
    assert schema == "CREATE TABLE t (\n    a NOT NULL,\n    b,\n    PRIMARY KEY (b, a)\n);"


def test_tables_that_a_full_text_table_keeps_its_data_in_are_not_shown(tmp_path: Path) -> None:
    path = database(tmp_path / "x.sqlite", "CREATE VIRTUAL TABLE words USING fts5(a)", "CREATE TABLE words_of_mine(b)")
    schema = schema_text(str(path), Detail(0, 0, descriptions=False, foreign_keys=False, compact=True))
    assert schema == "words (a)\nwords_of_mine (b)"
