"""Which rows are taken, which columns they have, and several sources at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlctl import config
from rlctl.data import load_pools, load_problems
from rlctl.data_files import Columns, Row, read_file
from rlctl.data_filters import normalised, row_filter
from rlctl.errors import ConfigError, DataError
from rlctl.settings import DataSettings


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


LEVELS = [
    {"question": "a", "answer": "1", "level": 4, "subject": "algebra"},
    {"question": "b", "answer": "2", "level": "5", "subject": "geometry"},
    {"question": "c", "answer": None, "level": 1, "subject": "algebra"},
    {"question": "d", "answer": "4", "level": 5.0, "subject": "Number Theory"},
]


def questions(spec: DataSettings, split: Any = "train", seed: int = 0) -> list[str]:
    return [problem.question for problem in load_problems(spec, split=split, seed=seed)]


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({"where": {"level": 5}}, ["b", "d"]),
        ({"where": {"level": "5"}}, ["b", "d"]),
        ({"where": {"level": [4, 5]}}, ["a", "b", "d"]),
        ({"where": {"level": 5, "subject": "geometry"}}, ["b"]),
        ({"match": {"subject": "^(geo|Num)"}}, ["b", "d"]),
        ({"match": {"subject": "a"}, "where": {"level": 4}}, ["a"]),
    ],
)
def test_rows_are_chosen_by_value_and_pattern_before_anything_else_is_asked_of_them(
    tmp_path: Path, filters: dict[str, Any], left: list[str]
) -> None:
    # The row without an answer is no fault, since no filter here wants it.
    assert questions(DataSettings(path=write(tmp_path / "x.jsonl", *LEVELS), **filters)) == left


def test_truth_is_compared_as_truth_and_null_as_nothing(tmp_path: Path) -> None:
    rows = [
        {"question": q, "answer": "1", "ok": ok} for q, ok in (("a", True), ("b", False), ("c", None), ("d", "true"))
    ]
    path = write(tmp_path / "x.jsonl", *rows)
    assert questions(DataSettings(path=path, where={"ok": True})) == ["a", "d"]
    assert questions(DataSettings(path=path, where={"ok": ""})) == ["c"]


def test_a_filter_on_a_column_that_is_not_there_names_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.jsonl:1: no column 'levle', which data\.where or data\.match asks for"):
        questions(DataSettings(path=write(tmp_path / "x.jsonl", *LEVELS), where={"levle": 5}))


def test_a_filter_that_leaves_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"0 of 4 rows left after data\.where and data\.match"):
        questions(DataSettings(path=write(tmp_path / "x.jsonl", *LEVELS), where={"level": 9}))


def test_a_pattern_that_is_none_is_refused_with_its_column() -> None:
    with pytest.raises(ConfigError, match=r"data\.match.*no regular expression for subject"):
        config.load(assignments=['data.match={"subject": "("}'], environ={})


def test_a_question_is_taken_once_whatever_its_case_and_spacing(tmp_path: Path) -> None:
    rows = [{"question": q, "answer": "1"} for q in ("How many?", "how  many?\n", "Ｈow many?", "How many")]
    path = write(tmp_path / "x.jsonl", *rows)
    assert questions(DataSettings(path=path, dedupe=True)) == ["How many?", "How many"]
    assert len(questions(DataSettings(path=path))) == 4
    assert normalised(" Ａ\tB ") == "a b"


def test_at_most_so_many_problems_are_chosen_by_the_seed_and_the_evaluation_keeps_its_own(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}", "answer": "1"} for i in range(50)]
    spec = DataSettings(path=write(tmp_path / "x.jsonl", *rows), max_problems=10, eval_size=5)
    first, again, other = questions(spec), questions(spec), questions(spec, seed=1)
    assert first == again != other
    assert len(first) == 10
    assert first == sorted(first, key=lambda q: int(q[1:]))
    assert len(questions(spec, "eval")) == 5
    assert not {*first} & {*questions(spec, "eval")}


def test_generated_problems_can_be_limited_but_have_no_rows_to_choose_from() -> None:
    assert len(questions(DataSettings(source="generated:word-problems", max_problems=7))) == 7
    with pytest.raises(DataError, match=r"has no rows to look at, so data\.where, data\.match and data\.dedupe"):
        questions(DataSettings(source="generated:word-problems", dedupe=True))


# Columns


def test_columns_within_columns_and_prompts_of_one_message_are_read(tmp_path: Path) -> None:
    # The layout of verl's prepared data sets.
    row = {"prompt": [{"role": "user", "content": "2 + 2?"}], "reward_model": {"style": "rule", "ground_truth": "4"}}
    columns = Columns(question="prompt", answer="reward_model.ground_truth", extra=("reward_model.style",))
    (problem,) = read_file(Path(write(tmp_path / "x.jsonl", row)), columns=columns)
    assert (problem.question, problem.answer, problem.extra) == ("2 + 2?", "4", {"reward_model.style": "rule"})


def test_a_conversation_is_gone_on_with_as_a_whole(tmp_path: Path) -> None:
    from rlctl.tokenizer import ChatTokenizer
    from tests.tiny import byte_tokenizer

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    path = write(tmp_path / "x.jsonl", {"question": messages, "answer": "4"})
    (problem,) = load_problems(DataSettings(path=path), split="train", seed=0)
    tokenizer = ChatTokenizer(byte_tokenizer(), system_prompt="Another.", prompt_suffix="Think.")
    text = tokenizer.tokenizer.decode(tokenizer.encode(problem).tolist())
    assert text == "<|start|>system: Be brief.\n<|start|>user: 2 + 2? Think.\n<|start|>assistant: "


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
        [{"role": "user", "content": [{"type": "image"}]}],
        [{"role": "user"}],
        ["x"],
    ],
)
def test_what_is_no_conversation_with_a_question_is_refused(tmp_path: Path, messages: list[Any]) -> None:
    with pytest.raises(DataError, match=r"x\.jsonl:1: question is a list"):
        questions(DataSettings(path=write(tmp_path / "x.jsonl", {"question": messages, "answer": "1"})))


def test_columns_for_rewards_of_ones_own_are_kept(tmp_path: Path) -> None:
    spec = DataSettings(path=write(tmp_path / "x.jsonl", {**LEVELS[0], "tests": ["x == 1"]}), extra_keys=("tests",))
    (problem,) = load_problems(spec, split="train", seed=0)
    assert problem.extra == {"tests": ["x == 1"]}
    missing = DataSettings(path=write(tmp_path / "y.jsonl", LEVELS[0]), extra_keys=("tests",))
    with pytest.raises(DataError, match=r"y\.jsonl:1: no column 'tests'"):
        load_problems(missing, split="train", seed=0)


# Several sources


def settings(*assignments: str) -> DataSettings:
    return config.load(assignments=assignments, environ={}).settings.data


def two_sources(folder: Path, **second: Any) -> DataSettings:
    one = write(folder / "one.jsonl", *({"q": f"one {i}", "answer": "1"} for i in range(20)))
    two = write(folder / "two.jsonl", *({"question": f"two {i}", "answer": "1"} for i in range(30)))
    tables = [{"path": one, "question_key": "q", "name": "first"}, {"path": two, **second}]
    return settings(f"data.sources={json.dumps(tables)}", "data.eval_size=2")


def test_each_source_has_columns_name_and_held_out_rows_of_its_own(tmp_path: Path) -> None:
    spec = two_sources(tmp_path)
    pools = load_pools(spec, split="train", seed=0)
    assert [(pool.name, len(pool.problems), pool.weight) for pool in pools] == [("first", 18, None), ("two", 28, None)]
    held_out = load_problems(spec, split="eval", seed=0)
    assert [problem.source for problem in held_out] == ["first", "first", "two", "two"]
    every_id = [p.id for p in [*held_out, *load_problems(spec, split="train", seed=0)]]
    assert len(set(every_id)) == 50
    assert "first/one:1" in every_id


def test_a_file_and_a_generator_can_be_mixed(tmp_path: Path) -> None:
    tables = [{"path": write(tmp_path / "a.jsonl", *LEVELS[:2])}, {"source": "generated:word-problems"}]
    problems = load_problems(settings(f"data.sources={json.dumps(tables)}"), split="train", seed=0)
    assert len(problems) == 2 + 100_000
    assert [problems[i].source for i in (0, 1, 2, 100_001)] == ["a", "a", *["generated:word-problems"] * 2]
    assert problems[2].id.startswith("generated:word-problems/word-problems/train/0/0")


def test_what_a_table_leaves_out_comes_from_above(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"q": "x", "answer": "1"}, {"q": "y", "answer": "1"})
    spec = settings(f'data.sources=[{{"path": "{path}"}}]', "data.question_key=q", "data.dedupe=true")
    assert (spec.tables()[0].question_key, spec.tables()[0].dedupe) == ("q", True)
    assert questions(spec) == ["x", "y"]


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        ('[{"path": "a/x.jsonl"}, {"path": "b/x.jsonl"}]', "has 2 called 'x'; give each a name of its own"),
        ('[{"path": "a.jsonl", "weight": 1}, {"path": "b.jsonl"}]', "'b' has no weight and others have"),
        ('[{"path": "a.jsonl", "weight": 0}]', r"data\.sources\[1\]\.weight = 0 .* must be greater than 0"),
        ('[{"path": "a.jsonl"}, {"pth": "b.jsonl"}]', r"data\.sources\[2\]\.pth .* Did you mean path\?"),
        ('["a.jsonl"]', r"data\.sources\[1\] = \"a\.jsonl\" .* must be"),
    ],
)
def test_sources_that_cannot_be_mixed_are_refused(sources: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        settings(f"data.sources={sources}")


def test_a_path_beside_sources_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.path is set beside data\.sources"):
        settings('data.sources=[{"path": "a.jsonl"}]', "data.path=b.jsonl")


def test_a_null_in_a_table_of_a_file_is_one(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[[data.sources]]\nsource = "owner/set"\nsubset = "null"\n')
    assert config.load(config=str(file), environ={}).settings.data.tables()[0].subset is None


@pytest.mark.parametrize(
    ("wanted", "there", "same"),
    [(5, "5.0", True), ("5.0", 5, True), (True, "True", True), ("False", False, True), (5, "5.05", False)],
)
def test_cells_of_a_csv_file_are_compared_as_what_they_were(wanted: object, there: object, same: bool) -> None:
    keeps = row_filter({"x": wanted}, {})
    assert keeps is not None
    assert keeps(Row(2, {"x": there})) is same
