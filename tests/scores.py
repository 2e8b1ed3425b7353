"""Reward functions that runs of the tests name: each run's workers import this module, so it imports nothing."""

from __future__ import annotations

from typing import Any


def digit_reward(problem: Any, completion: str) -> float:
    """1 for each completion that begins with a digit above 4."""
    return float(completion[:1] in tuple("56789"))


def half_solved(problem: Any, completion: str) -> float:
    """Every completion of an even number is right; of an odd one, those that begin with a digit above 4."""
    number = int("".join(filter(str.isdigit, problem.question)))
    return 1.0 if number % 2 == 0 else digit_reward(problem, completion)


def one(problem: Any, completion: str) -> float:
    return 1.0


def refuses(problem: Any, completion: str) -> float:
    raise ValueError("never")


def failing_reward(problem: Any, completion: str) -> float:
    if completion[:1] in "01":
        raise ValueError("cannot judge this")
    return float(len(completion) % 2)


def list_reward(problem: Any, completion: str) -> Any:
    return [1.0]
