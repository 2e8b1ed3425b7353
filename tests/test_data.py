"""Problems from files, the hub and generators: every fault with file and line, every order from the seed alone."""

from __future__ import annotations

import csv
import json
import random
import sys
import types
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.data import epoch_order, filter_long, load_problems, require_full_batch
from rlctl.data_files import Columns, DatabaseColumns, read_file
from rlctl.errors import DataError
from rlctl.rewards import load_rewards
from rlctl.settings import DataSettings
from rlctl.types import Problem

PROMPTS = Columns(question="prompt", answer="answer")
GSM8K = Path(__file__).parents[1].parent / "shared" / "data" / "gsm8k"


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def rows(count):
    return [{"question": f"{i} + 1?", "answer": str(i + 1)} for i in range(count)]


def complaint(path, **columns):
    with pytest.raises(DataError) as caught:
        read_file(path, columns=Columns(**columns))
    return str(caught.value)


# What can be read

TWO = [Problem("two:1", "a?", "1", ""), Problem("two:2", "b?", "2.5", "")]


def write_two(path):
    table = [{"question": "a?", "answer": "1"}, {"question": "b?", "answer": "2.5"}]
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(table))
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            delimiter = "," if path.suffix == ".csv" else "\t"
            writer = csv.DictWriter(file, ["question", "answer"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(table)
    else:
        write(path, *table)


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet"])
def test_every_format_gives_the_same_problems(tmp_path, suffix):
    path = tmp_path / f"two{suffix}"
    write_two(path)
    read = read_file(path, columns=Columns())
    assert [(p.question, p.answer) for p in read] == [(p.question, p.answer) for p in TWO]
    assert {p.source for p in read} == {path.stem}


def test_problem_without_id_column_is_named_by_file_and_line(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text('{"question":"a","answer":"1"}\n\n{"question":"b","answer":"2"}\n')
    assert [p.id for p in read_file(path, columns=Columns())] == ["set:1", "set:3"]


def test_id_and_answer_may_be_numbers(tmp_path):
    path = write(
        tmp_path / "x.jsonl", {"id": 7, "question": "a", "answer": 1.5}, {"id": 8, "question": "b", "answer": 2}
    )
    read = read_file(path, columns=Columns(id="id"))
    assert [(p.id, p.answer) for p in read] == [("7", "1.5"), ("8", "2")]


def test_046_byte_order_mark_crlf_and_blank_last_line_are_no_harm(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt":"a","answer":"1"}\r\n{"prompt":"b","answer":"2"}\r\n\r\n')
    assert [(p.question, p.answer) for p in read_file(path, columns=PROMPTS)] == [("a", "1"), ("b", "2")]


def test_046_byte_order_mark_in_csv_is_no_part_of_the_first_column(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b'\xef\xbb\xbfprompt,answer\r\n"a, or\r\nb",1\r\nc,2\r\n\r\n')
    assert [(p.id, p.question) for p in read_file(path, columns=PROMPTS)] == [("x:2", "a, or\r\nb"), ("x:4", "c")]


def test_line_separator_inside_a_string_ends_no_line(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"question":"a\u2028b","answer":"1"}\n', encoding="utf-8")
    assert read_file(path, columns=Columns())[0].question == "a\u2028b"


def test_json_lines_under_the_suffix_json_are_read(tmp_path):
    assert len(read_file(write(tmp_path / "x.json", *rows(2)), columns=Columns())) == 2


# What is refused


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"question":"a","answer":"1"', "x.jsonl:2: not JSON: "),
        ("[1]", "x.jsonl:2: a list, not an object with columns"),
        ('{"question":"a","answer":null}', "x.jsonl:2: answer is null"),
        ('{"question":"a","answer":"  "}', "x.jsonl:2: answer is empty"),
        ('{"question":"","answer":"1"}', "x.jsonl:2: question is empty"),
        ('{"question":5,"answer":"1"}', "x.jsonl:2: question is a int, not text"),
        ('{"question":"a","answer":true}', "x.jsonl:2: answer is a bool, not text"),
        ('{"question":"a","answer":NaN}', "x.jsonl:2: answer is nan, which is no number"),
        ('{"question":"a","answer":["1"]}', "x.jsonl:2: answer is a list, not text"),
        ('{"question":"\\ud800","answer":"1"}', "x.jsonl:2: question has half a surrogate pair"),
        ('{"question":"a","answer":' + "9" * 5000 + "}", "x.jsonl:2: not JSON: "),
        ("[" * 100_000, "x.jsonl:2: not JSON: nested too deeply"),
        ('{"query":"a","answer":"1"}', "x.jsonl:2: no column 'question'; columns: query, answer"),
        ('{"questions":"a","answer":"1"}', "did you mean 'questions'?"),
    ],
)
def test_faulty_line_is_named_with_file_and_line(tmp_path, line, says):
    path = tmp_path / "x.jsonl"
    path.write_text('{"question":"a","answer":"1"}\n' + line + "\n")
    assert says in complaint(path)


def test_bad_utf8_is_named_with_file_and_line(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b'{"question":"a","answer":"1"}\n{"question":"\xe9","answer":"1"}\n')
    (tmp_path / "x.csv").write_bytes(b"question,answer\na,1\n\xe9,2\n")
    assert "x.jsonl:2: not UTF-8 (byte 0xe9" in complaint(tmp_path / "x.jsonl")
    assert "x.csv:3: not UTF-8 (byte 0xe9" in complaint(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("question,answer\na,1\nb\n", "x.csv:3: 1 fields, but 2 columns"),
        ("question,question\na,1\n", "x.csv:1: a column is named twice"),
        ('question,answer\na,1\n"b,2\n', "not CSV: "),
        ("question,answer\n", "has no rows"),
        ("prompt,answer\na,1\n", "x.csv:2: no column 'question'; columns: prompt, answer"),
    ],
)
def test_faulty_csv_is_named_with_file_and_line(tmp_path, text, says):
    path = tmp_path / "x.csv"
    path.write_text(text)
    assert says in complaint(path)


def test_file_that_is_no_parquet_is_refused(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_text("question,answer\n")
    assert "x.parquet:1: not Parquet: " in complaint(path)


def test_up_to_five_faults_are_shown_and_the_rest_counted(tmp_path):
    said = complaint(write(tmp_path / "x.jsonl", *[{"question": "a", "answer": ""}] * 8)).splitlines()
    assert [line.rpartition("x.jsonl:")[2] for line in said[:5]] == [f"{i}: answer is empty" for i in range(1, 6)]
    assert said[5:] == ["and 3 more lines like these"]


def test_048_repeated_id_names_the_id_and_both_lines(tmp_path):
    twice = [{"id": "q1", "question": "a", "answer": "1"}, {"id": "q1", "question": "b", "answer": "2"}]
    assert "x.jsonl:2: id 'q1' is also on line 1" in complaint(write(tmp_path / "x.jsonl", *twice), id="id")


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.csv"])
def test_empty_file_is_refused(tmp_path, name):
    (tmp_path / name).write_text("")
    assert "has no rows" in complaint(tmp_path / name)


def test_missing_file_names_the_nearest(tmp_path):
    write(tmp_path / "train.jsonl", *rows(1))
    with pytest.raises(DataError, match=r"trian\.jsonl: no such file") as caught:
        read_file(tmp_path / "trian.jsonl", columns=Columns())
    assert caught.value.hint == f"did you mean {tmp_path / 'train.jsonl'}?"


def test_folder_is_refused_with_the_files_in_it(tmp_path):
    write(tmp_path / "train.jsonl", *rows(1))
    assert complaint(tmp_path).endswith("is a folder; it holds train.jsonl.")


def test_unknown_suffix_is_refused_with_the_known_ones(tmp_path):
    (tmp_path / "x.xlsx").write_text("")
    with pytest.raises(DataError, match=r"rows cannot be read from \.xlsx") as caught:
        read_file(tmp_path / "x.xlsx", columns=Columns())
    assert ".jsonl" in caught.value.hint


def test_061_gold_that_is_no_number_is_found_with_file_and_line(tmp_path):
    path = write(tmp_path / "x.jsonl", {"question": "a", "answer": "#### 1"}, {"question": "b", "answer": "#### none"})
    with pytest.raises(DataError, match=r"x\.jsonl:2: problem x:2: gold answer 'none' is not a number"):
        load_problems(DataSettings(path=str(path)), split="train", seed=0, check=load_rewards(["gsm8k"]).gold_complaint)


@pytest.mark.skipif(not GSM8K.exists(), reason="no shared/data/gsm8k beside the repository")
def test_gsm8k_is_read_whole_and_every_gold_is_a_number():
    check = load_rewards(["gsm8k"]).gold_complaint
    spec = DataSettings(path=str(GSM8K / "train.jsonl"), eval_path=str(GSM8K / "test.jsonl"), eval_size=5000)
    train = load_problems(spec, split="train", seed=0, check=check)
    held_out = load_problems(spec, split="eval", seed=0, check=check)
    assert (len(train), len(held_out)) == (7473, 1319)


# Training and evaluation problems


def ids(spec, *, split, seed=0):
    return [problem.id for problem in load_problems(spec, split=split, seed=seed)]


def test_held_out_problems_are_disjoint_and_decided_by_the_seed(tmp_path):
    spec = DataSettings(path=str(write(tmp_path / "x.jsonl", *rows(100))), eval_size=7)
    train, held_out = ids(spec, split="train"), ids(spec, split="eval")
    assert (len(train), len(held_out), len({*train, *held_out})) == (93, 7, 100)
    assert ids(spec, split="eval") == held_out
    assert ids(spec, split="eval", seed=1) != held_out


def test_no_more_than_a_tenth_is_held_out(tmp_path):
    spec = DataSettings(path=str(write(tmp_path / "x.jsonl", *rows(25))), eval_size=256)
    assert (len(ids(spec, split="train")), len(ids(spec, split="eval"))) == (23, 2)


def test_file_too_small_to_hold_any_out_trains_on_all(tmp_path):
    spec = DataSettings(path=str(write(tmp_path / "x.jsonl", *rows(3))))
    assert (len(ids(spec, split="train")), len(ids(spec, split="eval"))) == (3, 0)


def test_eval_path_leaves_the_training_file_whole(tmp_path):
    train, evaluation = write(tmp_path / "a.jsonl", *rows(20)), write(tmp_path / "b.jsonl", *rows(20))
    spec = DataSettings(path=str(train), eval_path=str(evaluation), eval_size=5)
    assert len(ids(spec, split="train")) == 20
    picked = ids(spec, split="eval")
    assert len(picked) == 5
    assert set(picked) <= {f"b:{line}" for line in range(1, 21)}


# Generated problems


def test_generated_problems_are_made_when_asked_for():
    problems = load_problems(DataSettings(source="generated:word-problems", num_generated=10**9), split="train", seed=3)
    assert len(problems) == 10**9
    assert problems[10**9 - 1] == problems[-1]
    assert problems[5:7] == [problems[5], problems[6]]
    with pytest.raises(IndexError):
        problems[10**9]


def test_generated_splits_differ_and_every_gold_is_a_number():
    spec = DataSettings(source="generated:word-problems", num_generated=50, eval_size=50)
    train, held_out = (load_problems(spec, split=split, seed=0) for split in ("train", "eval"))
    check = load_rewards(["gsm8k"]).gold_complaint
    assert not {p.question for p in train} & {p.question for p in held_out}
    assert [check(p) for p in [*train, *held_out]] == [None] * 100


def test_unknown_generator_names_the_nearest():
    with pytest.raises(DataError, match=r"Did you mean generated:word-problems\?"):
        load_problems(DataSettings(source="generated:words"), split="train", seed=0)


# The hub


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))


@pytest.mark.usefixtures("offline")
def test_hub_out_of_reach_is_an_error_with_a_cure():
    with pytest.raises(DataError, match="not in the local cache, and HF_HUB_OFFLINE is set") as caught:
        load_problems(DataSettings(), split="train", seed=0)
    assert "--set data.path=" in caught.value.hint


def test_file_given_as_a_source_is_an_error_with_a_cure():
    with pytest.raises(DataError) as caught:
        load_problems(DataSettings(source="train.jsonl"), split="train", seed=0)
    assert "--set data.path=train.jsonl" in caught.value.hint


@pytest.fixture
def hub_with_two_rows(tmp_path, monkeypatch, offline):
    """A stand-in for `datasets` whose cache holds one data set of two rows, and which knows no other split."""
    (tmp_path / "some___set" / "main" / "0.0.0" / "hash").mkdir(parents=True)
    (tmp_path / "some___set" / "main" / "0.0.0" / "hash" / "dataset_info.json").write_text("{}")

    def load_dataset(name, subset, *, split):
        if split != "train":
            raise ValueError(f'Unknown split "{split}".')
        return rows(2)

    stand_in = types.ModuleType("datasets")
    stand_in.load_dataset = load_dataset
    stand_in.config = types.SimpleNamespace(HF_HUB_OFFLINE=False)
    monkeypatch.setitem(sys.modules, "datasets", stand_in)
    return stand_in


def test_cached_data_set_is_read_without_the_hub(hub_with_two_rows):
    problems = load_problems(DataSettings(source="some/set"), split="train", seed=0)
    assert [(p.id, p.answer) for p in problems] == [("some/set/train:1", "1"), ("some/set/train:2", "2")]
    assert hub_with_two_rows.config.HF_HUB_OFFLINE is True


@pytest.mark.usefixtures("hub_with_two_rows")
def test_unknown_split_is_a_data_error():
    with pytest.raises(DataError, match="split 'test': Unknown split"):
        load_problems(DataSettings(source="some/set"), split="eval", seed=0)


# Order, filter, batch


def test_049_order_is_a_function_of_seed_and_epoch_alone():
    def two_epochs(seed):
        first = epoch_order(6, seed=seed, epoch=0).tolist()
        random.random(), np.random.default_rng().random()
        return first, epoch_order(6, seed=seed, epoch=1).tolist()

    once, again, other = two_epochs(0), two_epochs(0), two_epochs(1)
    assert once == again
    assert once[0] != once[1]
    assert once != other
    assert sorted(once[0]) == sorted(once[1]) == list(range(6))


def test_049_order_is_the_same_with_every_version_of_numpy():
    assert epoch_order(6, seed=0, epoch=0).tolist() == [4, 3, 5, 2, 0, 1]
    assert epoch_order(6, seed=0, epoch=1).tolist() == [0, 4, 2, 5, 1, 3]


@settings(deadline=None)  # A busy machine is no fault.
@given(size=st.integers(0, 200), seed=st.integers(0, 2**70), epoch=st.integers(0, 10**6))
def test_every_order_is_a_permutation(size, seed, epoch):
    assert sorted(epoch_order(size, seed=seed, epoch=epoch)) == list(range(size))


def problems_named(*names):
    return [Problem(name, "?", "1") for name in names]


def test_040_prompt_over_the_limit_is_dropped_by_name_and_the_boundary_passes():
    filtered = filter_long(problems_named("a", "b", "c"), [16, 17, 3], max_prompt_length=32 - 16)
    assert [problem.id for problem in filtered.problems] == ["a", "c"]
    assert filtered.dropped == {"b": 17}


def test_045_nothing_left_is_an_error():
    with pytest.raises(DataError, match=r"0 of 3 rows left after length filter \(max 10, shortest 20\)"):
        filter_long(problems_named("a", "b", "c"), [20, 20, 20], max_prompt_length=10)


def test_043_fewer_rows_than_a_batch_is_an_error():
    with pytest.raises(DataError, match="3 rows < batch 4"):
        require_full_batch(3, batch_size=4)
    require_full_batch(4, batch_size=4)


@pytest.mark.parametrize(
    "text",
    ["\n\r\nquestion,answer\nq,1\n", "question,answer\n  \nq,1\n \n", f"question,answer\nq,1\n{'x' * 200_000},1\n"],
)
def test_csv_may_have_blank_lines_and_long_fields(tmp_path, text):
    path = tmp_path / "x.csv"
    path.write_text(text, newline="")
    assert read_file(path, columns=Columns())[0].answer == "1"


def test_decimal_answers_of_a_parquet_file_are_numbers(tmp_path):
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"question": ["q"], "answer": [Decimal("5.50")]}), path)
    assert read_file(path, columns=Columns())[0].answer == "5.50"


@pytest.mark.parametrize(
    ("name", "file"), [("plain", "plain"), ("my.db", "my.db/my.db.sqlite"), ("new", "new/new.sqlite"), ("x.db", "x.db")]
)
def test_database_is_a_file_or_a_folder_with_one(tmp_path, name, file):
    (tmp_path / "plain").touch()
    (tmp_path / "my.db").mkdir()
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"question": "q", "answer": "SELECT 1", "db": name}))
    problem = read_file(path, columns=Columns(database=DatabaseColumns("db", str(tmp_path))))[0]
    assert problem.extra["database"] == str(tmp_path / file)
