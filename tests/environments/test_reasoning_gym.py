"""reasoning-gym, the real package: its problems, its grader, and splits that never meet."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import time

import pytest

from rlctl import config
from rlctl.data import load_problems
from rlctl.environments.grading import with_own_graders
from rlctl.environments.reasoning_gym import find_answer, grade
from rlctl.errors import DataError
from rlctl.rewards import RewardResult, load_rewards, score
from rlctl.settings import DataSettings, Settings
from rlctl.types import Problem

pytest.importorskip("reasoning_gym", reason="needs rlctl[reasoning-gym]")


def problems(name: str, *, split: str = "train", seed: int = 0, **changes: object) -> list[Problem]:
    spec = DataSettings(**{"source": f"reasoning-gym:{name}", "num_generated": 20, "eval_size": 20, **changes})
    return list(load_problems(spec, split=split, seed=seed))  # type: ignore[arg-type]


def test_problems_are_a_function_of_seed_and_number() -> None:
    first = problems("gsm_symbolic")
    assert first == problems("gsm_symbolic")
    assert len({p.question for p in first}) == 20
    assert {p.question for p in first} != {p.question for p in problems("gsm_symbolic", seed=1)}
    assert first[3].id == "reasoning-gym:gsm_symbolic/train/0/3"
    assert first[3].source == "reasoning-gym:gsm_symbolic"


@pytest.mark.parametrize("seed", [0, 1, 2**62])
def test_training_and_evaluation_draw_from_seeds_that_never_meet(seed: int) -> None:
    train, evaluation = (problems("gsm_symbolic", split=split, seed=seed) for split in ("train", "eval"))
    first_seeds = [problem[0].extra["dataset"][2] for problem in (train, evaluation)]
    # The package seeds item i with seed + i; data.num_generated is below 2^31.
    assert first_seeds[0] + 2**31 - 1 < first_seeds[1] < 2**32 - 2**20
    assert not {p.question for p in train} & {p.question for p in evaluation}


@pytest.mark.parametrize("name", ["gsm_symbolic", "leg_counting", "rubiks_cube", "countdown", "letter_counting"])
def test_the_packages_own_grader_decides(name: str) -> None:
    import reasoning_gym

    for problem in problems(name)[:5]:
        _, _, seed, size = problem.extra["dataset"]
        dataset = reasoning_gym.create_dataset(name, seed=seed, size=size)
        entry = dataset[problem.extra["index"]]
        right = grade(problem, f"<think>hm</think><answer>{problem.answer}</answer>")
        assert right.score == dataset.score_answer(problem.answer, entry)
        wrong = grade(problem, "<answer>no idea</answer>")
        assert wrong.score == dataset.score_answer("no idea", entry)
        assert right.score > wrong.score or not problem.answer
        assert grade(problem, problem.answer).score == 0.0


def test_an_answer_that_a_grader_cannot_read_is_wrong_and_says_why() -> None:
    # This grader calls int() on whatever it is given.
    result = grade(problems("prime_factorization")[0], "<answer>no idea</answer>")
    assert result.score == 0.0
    assert result.note.startswith("unreadable answer: ValueError")


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<answer> 7 </answer>", "7"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        (r"<answer>1</answer> so \boxed{2}", "2"),
        (r"\boxed{1} or \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("work\n#### 12 apples\n", "12 apples"),
        ("#### 3\n<answer>4</answer>", "4"),
        ("<answer>two\nlines</answer>", "two\nlines"),
        ("<answer>1 <answer>2</answer>", "2"),
        ("<answer></answer>", ""),
        ("<answer>cut", None),
        ("seven", None),
        ("", None),
    ],
)
def test_the_last_marked_answer_counts(completion: str, answer: str | None) -> None:
    assert find_answer(completion) == answer


@pytest.mark.parametrize(
    "piece", ["<answer>", "<answer></answer", "\\boxed{", "#### ", "\\boxed{1}<answer>", "\\boxed{{a}"]
)
def test_long_completions_are_read_in_linear_time(piece: str) -> None:
    start = time.process_time()
    find_answer(piece * (500_000 // len(piece)))
    assert time.process_time() - start < 20  # the square of it would take hours


def test_options_reach_the_package_and_wrong_ones_are_named() -> None:
    (problem,) = problems("leg_counting", num_generated=1, options={"min_animals": 9, "max_animals": 9})
    assert problem.question.count(",") == 9  # eight between nine animals, and one after "Now"
    with pytest.raises(DataError, match=r"refuses data\.options = .*min_animal") as caught:
        problems("leg_counting", options={"min_animal": 9})
    assert "min_animals" in caught.value.hint
    with pytest.raises(DataError, match=r"refuses data\.options"):
        problems("leg_counting", options={"min_animals": 9, "max_animals": 3})


def test_an_unknown_data_set_names_the_nearest() -> None:
    with pytest.raises(DataError, match=r"no data set 'gsm_symbol'\. Did you mean gsm_symbolic\?"):
        problems("gsm_symbol")


def test_without_the_package_the_install_line_is_told() -> None:
    code = """
import sys
sys.modules["reasoning_gym"] = None
from rlctl.data import load_problems
from rlctl.errors import DataError
from rlctl.settings import DataSettings
try:
    load_problems(DataSettings(source="reasoning-gym:gsm_symbolic"), split="train", seed=0)
except DataError as error:
    print(error.message, error.hint)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "reasoning-gym needs the package 'reasoning_gym'" in told
    assert "pip install 'rlctl[reasoning-gym]'" in told


# As the reward of a run


def settings(*assignments: str) -> Settings:
    return config.load(assignments=assignments, environ={}).settings


def test_the_first_reward_gives_way_to_the_packages_grader() -> None:
    rewards, notes = with_own_graders(load_rewards(["gsm8k"]), settings("data.source=reasoning-gym:rubiks_cube"))
    assert [reward.name for reward in rewards.rewards] == ["environment"]
    assert "in place of 'gsm8k'; reward.own_grader = false keeps that" in notes[0]
    kept = ("data.source=reasoning-gym:rubiks_cube", "reward.own_grader=false")
    assert with_own_graders(load_rewards(["gsm8k"]), settings(*kept))[0].rewards[0].name == "gsm8k"
    assert with_own_graders(load_rewards(["gsm8k"]), settings())[0].rewards[0].name == "gsm8k"


def test_in_a_mixture_each_problem_is_graded_where_it_came_from() -> None:
    tables = '[{"source": "reasoning-gym:letter_counting"}, {"source": "generated:word-problems"}]'
    rewards, _ = with_own_graders(load_rewards(["gsm8k"]), settings(f"data.sources={tables}"))
    (own,), plain = problems("letter_counting", num_generated=1), Problem("x", "1 + 1?", "#### 2")
    items = [(own, f"<answer>{own.answer}</answer>"), (own, "<answer>x</answer>"), (plain, "#### 2"), (plain, "2")]
    assert [scored.reward for scored in asyncio.run(score(rewards, items))] == [1.0, 0.0, 1.0, 0.0]


def test_the_reward_and_its_problems_can_go_to_another_process() -> None:
    rewards, _ = with_own_graders(load_rewards(["gsm8k"]), settings("data.source=reasoning-gym:letter_counting"))
    (own,) = problems("letter_counting", num_generated=1)
    problem = pickle.loads(pickle.dumps(own))
    result = rewards.rewards[0].function(problem, f"<answer>{own.answer}</answer>")
    assert isinstance(result, RewardResult)
    assert result.score == 1.0
