"""Generated word problems: pure, correct as worked, varied, and with splits that cannot meet."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys

import pytest

from rlctl.problems import LARGEST_NUMBER, Split, split_of, story_of, word_problem
from rlctl.types import Problem

ANNOTATION = re.compile(r"(\d+)([-+*/])(\d+)=<<(\d+)([-+*/])(\d+)=(\d+)>>(\d+)")


def test_a_problem_is_the_same_every_time_and_leaves_the_global_generator_alone() -> None:
    random.seed(5)
    expected_draw = random.random()

    random.seed(5)
    first = word_problem(3, 14, split="train")
    draw = random.random()

    assert first == word_problem(3, 14, split="train")
    assert draw == expected_draw


def test_a_problem_does_not_depend_on_the_hash_seed_of_the_process() -> None:
    script = "from rlctl.problems import word_problem; print(word_problem(3, 14, split='eval'))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }

    assert printed == {str(word_problem(3, 14, split="eval"))}


def test_id_and_source_say_where_a_problem_comes_from() -> None:
    problem = word_problem(0, 17, split="train")

    assert problem.id == "word-problems/train/0/17"
    assert problem.source == "word-problems"


def test_seed_index_and_split_each_make_another_problem() -> None:
    questions = {
        word_problem(0, 0, split="train").question,
        word_problem(1, 0, split="train").question,
        word_problem(0, 1, split="train").question,
        word_problem(0, 0, split="eval").question,
    }

    assert len(questions) == 4


@pytest.mark.parametrize("split", ["train", "eval"])
def test_every_step_of_an_answer_is_calculated_right(split: Split) -> None:
    for problem in _problems(split, 2000):
        annotations = ANNOTATION.findall(problem.answer)

        assert len(annotations) == problem.answer.count("<<") == 2
        assert all(_is_right(annotation) for annotation in annotations), problem.answer


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_answer_ends_in_the_result_of_the_last_step(split: Split) -> None:
    for problem in _problems(split, 2000):
        last_result = ANNOTATION.findall(problem.answer)[-1][-1]

        assert problem.answer.splitlines()[-1] == f"#### {last_result}"


def test_every_number_of_a_solution_stands_in_the_question_or_is_a_result() -> None:
    for problem in _problems("train", 2000):
        known = set(re.findall(r"\d+", problem.question))
        known |= {"2"} if re.search("doubles|half", problem.question) else set()
        for left, _, right, *_, result in ANNOTATION.findall(problem.answer):
            assert {left, right} <= known, problem
            known.add(result)


def test_numbers_stay_within_two_digits() -> None:
    numbers = [
        int(number)
        for problem in _problems("train", 2000)
        for number in re.findall(r"\d+", problem.question + problem.answer)
    ]

    assert min(numbers) >= 1
    assert max(numbers) <= LARGEST_NUMBER


def test_equal_questions_have_equal_answers() -> None:
    answers: dict[str, str] = {}

    for problem in _problems("train", 20000):
        assert answers.setdefault(problem.question, problem.answer) == problem.answer


def test_the_splits_share_no_question_and_no_calculation_whatever_the_seed() -> None:
    train = [word_problem(seed, index, split="train") for seed in range(4) for index in range(2000)]
    evaluated = [word_problem(seed, index, split="eval") for seed in range(4) for index in range(2000)]

    assert not {problem.question for problem in train} & {problem.question for problem in evaluated}
    assert not set(map(_calculation, train)) & set(map(_calculation, evaluated))


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_calculation_alone_decides_the_split(split: Split) -> None:
    assert {split_of(story_of(0, index, split=split).steps) for index in range(200)} == {split}


def test_there_are_many_hundred_thousand_distinct_questions() -> None:
    num_drawn = 20_000
    num_distinct = len({problem.question for problem in _problems("train", num_drawn)})

    # Among n draws from N equally likely ones about n * n / 2N are repeats; unequal ones repeat more.
    assert num_drawn - num_distinct < num_drawn**2 / (2 * 500_000)


def _problems(split: Split, count: int) -> list[Problem]:
    return [word_problem(0, index, split=split) for index in range(count)]


def _calculation(problem: Problem) -> tuple[str, ...]:
    return tuple(re.findall(r"<<(.*?)=", problem.answer))


def _is_right(annotation: tuple[str, ...]) -> bool:
    left, operator, right, again_left, again_operator, again_right, result, shown = annotation
    expected = {
        "+": int(left) + int(right),
        "-": int(left) - int(right),
        "*": int(left) * int(right),
        "/": int(left) / int(right),
    }[operator]
    same_twice = (left, operator, right) == (again_left, again_operator, again_right)
    return same_twice and int(result) == expected and result == shown
