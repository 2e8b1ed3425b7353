"""What one call of a reward came to: a result, or a failure of a kind that can be counted.

Whatever ran the call (the event loop, a thread, a worker process), its value becomes a result here, by one rule.
"""

from __future__ import annotations

import math
import numbers
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rlctl.errors import RewardError
from rlctl.rewards.base import RewardResult

FailureKind = Literal["timeout", "exception", "crash", "not_finite"]

FAILURE_KINDS: tuple[FailureKind, ...] = ("timeout", "exception", "crash", "not_finite")
"""No answer in time; raised; its worker process died; a value that is NaN, infinite or absurdly large."""

LARGEST_REWARD = 1e12
"""Weighted rewards of that size drown every other, and their squares leave floating point."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call gave nothing, in a few words."""

    kind: FailureKind
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """One call: what it gave, and how long it took from its start (waiting for a free worker is not counted)."""

    result: RewardResult | None
    failure: Failure | None = None
    seconds: float = 0.0


def outcome_of(name: str, value: object, *, weight: float, seconds: float) -> Outcome:
    """What the reward of that name returned, as an outcome. Raises RewardError when it is no number at all."""
    result = as_result(name, value)
    if not abs(result.score * weight) < LARGEST_REWARD:
        text = f"returned {result.score:g}, which is no usable number"
        return Outcome(None, Failure("not_finite", text), seconds)
    broken = [f"{key} = {number:g}" for key, number in result.extra.items() if not math.isfinite(number)]
    if broken:
        return Outcome(None, Failure("not_finite", f"returned {', '.join(broken)}"), seconds)
    return Outcome(result, None, seconds)


def as_result(name: str, value: object) -> RewardResult:
    """The value as a RewardResult. Raises RewardError when it is of a type the contract does not know."""
    if isinstance(value, RewardResult):
        extra = {str(key): _number(name, number) for key, number in value.extra.items()}
        score = _number(name, value.score)
        return replace(value, score=score, note=str(value.note), form=str(value.form), extra=extra)
    return RewardResult(_number(name, value))


def _number(name: str, value: object) -> float:
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return float(bool(value))
    # numbers.Real: int, bool, float and numpy's numbers; no list, array, string or None.
    if not isinstance(value, numbers.Real):
        raise RewardError(
            f"reward {name} must return one number for one completion, got {_kind(value)}.",
            hint="return a float, a bool or a RewardResult.",
        )
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _kind(value: object) -> str:
    """What it is, in a few words: `list of 7`, `numpy.ndarray`, `None`."""
    if value is None:
        return "None"
    if isinstance(value, list | tuple | dict | str):
        return f"{type(value).__name__} of {len(value)}"
    module = type(value).__module__
    return type(value).__qualname__ if module == "builtins" else f"{module}.{type(value).__qualname__}"


def describe(error: BaseException) -> str:
    """The error in one line, with the place it was raised at."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:300]}{place}"
