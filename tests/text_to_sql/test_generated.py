"""The generated data set: deterministic, its golds sound, its splits apart."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from rlctl.data_filters import without_duplicates
from rlctl.rewards.sql.rows import decode
from rlctl.settings.data import DataSettings
from rlctl.sources import Request, load
from rlctl.text_to_sql.databases import NUM_DATABASES, _written, database, database_path, numbers_of, split_of
from rlctl.text_to_sql.questions import asked_of, text_to_sql_problem
from tests.rewards.sql.helpers import reward


def test_a_problem_is_a_function_of_seed_and_number() -> None:
    first = [asked_of(3, index, split="train") for index in range(50)]
    assert first == [asked_of(3, index, split="train") for index in range(50)]
    assert first != [asked_of(4, index, split="train") for index in range(50)]


def test_a_database_has_the_same_bytes_wherever_it_is_written(tmp_path: Path) -> None:
    made = [_written(5, tmp_path / name).read_bytes() for name in ("a", "b")]
    assert hashlib.sha256(made[0]).digest() == hashlib.sha256(made[1]).digest()


def test_splits_share_no_database() -> None:
    assert set(numbers_of("train")) | set(numbers_of("eval")) == set(range(NUM_DATABASES))
    for split in ("train", "eval"):
        assert {split_of(asked_of(0, index, split=split)[0]) for index in range(200)} == {split}
    train, held_out = ({database(n).name for n in numbers_of(split)} for split in ("train", "eval"))
    assert len(train) == 48
    assert not train & held_out


def test_schemas_vary_and_some_names_need_quotes() -> None:
    tables = [table for number in range(NUM_DATABASES) for table in (database(number).parent, database(number).child)]
    assert len({table.columns for table in tables}) > 60
    assert any(table.name in ("order", "group") for table in tables)
    assert any(" " in column.name for table in tables for column in table.columns)
    assert any(None in row for table in tables for row in table.rows)


def test_golds_execute_give_rows_and_depend_on_no_order() -> None:
    problems = [text_to_sql_problem(7, index, split=split) for split in ("train", "eval") for index in range(150)]
    rule = reward(comparison="strict", timeout_s=5)
    assert rule.gold_findings(problems) == []
    assert {rule(problem, rule.gold_completion(problem)).score for problem in problems} == {1.0}
    assert any(problem.extra["evidence"] for problem in problems)
    kinds = {problem.answer.split(" FROM ")[0].split(" ")[1].partition("(")[0] for problem in problems}
    assert {"COUNT", "MAX", "AVG", "name"} <= kinds


def test_what_was_asked_for_is_what_the_database_holds() -> None:
    """The gold's value against one worked out from the rows in Python."""
    for index in range(400):
        number, asked = asked_of(1, index, split="eval")
        child = database(number).child
        words = asked.question.split()
        if asked.question.startswith("What is the average"):
            column = next(one for one in child.columns if one.name == words[4])
            values = [float(value) for value in child.values(column)]
            gold = decode(reward().golds.get(str(database_path(number)), asked.sql).rows)
            assert gold == [(pytest.approx(sum(values) / len(values)),)]


def test_the_source_is_known_by_its_name() -> None:
    spec = DataSettings(source="generated:text-to-sql", num_generated=10).tables()[0]
    problems = load(Request(spec, spec.source, "train", 0, 4))
    assert len(problems) == 10
    assert problems[3] == text_to_sql_problem(0, 3, split="train")
    assert Path(problems[3].extra["database"]).is_file()
    assert (Path(problems[3].extra["database"]).parent / "database_description").is_dir()


def test_the_same_question_about_another_database_is_another_problem() -> None:
    problems = [text_to_sql_problem(0, index, split="train") for index in range(400)]
    count = [problem for problem in problems if problem.question.startswith("How many pupils are there?")]
    assert len({problem.extra["database"] for problem in count}) > 1
    assert len(without_duplicates(count)) == len({problem.extra["database"] for problem in count})
