"""The reward math_verify: symbolic answers, in any thread, within a deadline."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from rlctl.errors import ConfigError
from rlctl.rewards import load_rewards, score
from rlctl.rewards.symbolic import MathVerify
from rlctl.rewards.workers import WorkerPool
from rlctl.types import Problem

pytest.importorskip("math_verify", reason="needs the math extra")


def grade(completion, gold, **options):
    return MathVerify(**options)(Problem("q", "?", gold), completion)


@pytest.mark.parametrize(
    ("completion", "gold", "right"),
    [
        (r"\boxed{x+1}", "1+x", True),
        (r"\boxed{\frac{1}{2}}", "0.5", True),
        (r"\boxed{\sqrt{8}}", r"$2\sqrt{2}$", True),
        (r"\boxed{x^2-1}", r"so $\boxed{(x-1)(x+1)}$.", True),
        (r"\boxed{\{1,2\}}", r"\{2,1\}", True),
        ("#### 5", "3+2=5\n#### 5", True),
        (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}", True),
        (r"\boxed{(2,1)}", "(1,2)", False),
        (r"\boxed{x+2}", "1+x", False),
        (r"\boxed{x+1} or \boxed{x+2}", "1+x", False),
        (r"<think>\boxed{x+1}</think> \boxed{x+2}", "1+x", False),
        (r"<think>\boxed{x+1}", "1+x", False),
        ("it is $x+1$", "1+x", False),
        (r"\boxed{}", "1+x", False),
        (r"\boxed{??}", "1+x", False),
    ],
)
def test_symbolic_answers_are_compared_by_value(completion, gold, right):
    assert grade(completion, gold).score == float(right)


def test_an_answer_without_a_marker_counts_only_when_allowed():
    assert grade("it is $x+1$", "1+x", allow_unmarked=True).score == 1.0
    assert grade("it is $x+1$", "1+x").note == "no answer marker"


def test_066_two_unreadable_answers_are_not_equal():
    assert grade(r"\boxed{??}", "??").score == 0.0
    assert MathVerify().gold_complaint(Problem("q", "?", "!!")) == "gold answer '!!' cannot be read by math-verify"


@pytest.mark.parametrize("gold", ["1,020", "#### 5", r"\frac{3}{4}", "x^2+1", r"$\boxed{\sqrt{2}}$"])
def test_a_gold_completion_gets_full_marks(gold):
    problem, reward = Problem("q", "?", gold), MathVerify()
    assert reward.gold_complaint(problem) is None
    assert reward(problem, reward.gold_completion(problem)).score == 1.0


def test_067_grades_in_threads_and_in_workers():
    pool = WorkerPool(1, memory_gb=2.0)
    in_worker = load_rewards(["math_verify"], pool=pool)
    in_thread = load_rewards(["math_verify"])
    items = [(Problem("q", "?", "1+x"), r"\boxed{x+1}"), (Problem("q", "?", "1+x"), r"\boxed{x}")]
    found = {}

    def work() -> None:
        found["worker"] = [one.reward for one in asyncio.run(score(in_worker, items))]
        found["thread"] = [one.reward for one in asyncio.run(score(in_thread, items))]

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    pool.close()
    assert found == {"worker": [1.0, 0.0], "thread": [1.0, 0.0]}


def test_an_answer_that_would_compute_for_ever_ends_at_the_deadline():
    pool = WorkerPool(1, memory_gb=2.0)
    reward_set = load_rewards(["math_verify"], timeout_s=5.0, pool=pool)
    texts = [r"\boxed{1}", r"\boxed{9^{9^{9^{9}}}}", r"\boxed{1}"]
    scored = asyncio.run(score(reward_set, [(Problem("q", "?", "1"), text) for text in texts]))
    pool.close()
    assert [one.reward for one in scored[::2]] == [1.0, 1.0]
    assert scored[1].reward in (None, 0.0)


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ConfigError, match=r"needs the package math-verify.*\n?.*pip install 'rlctl\[math\]'"):
        load_rewards(["math_verify"])


def test_naming_the_reward_does_not_load_sympy():
    code = (
        "import sys; from rlctl.rewards import load_rewards; load_rewards(['math_verify']);"
        " print({'math_verify', 'sympy', 'torch'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
