"""Grade symbolic answers with the package math-verify: the reward `math_verify` (`pip install 'rlctl[math]'`).

The answer is found as `math.py` finds it: the last `####` or `\\boxed{}` outside of thinking decides alone. What stands
there is compared with the gold answer by https://github.com/huggingface/Math-Verify: `x+1` is `1+x`, `0.5` is
`\\frac{1}{2}`. Its own time-outs raise SIGALRM, which works in no thread but the main one; they are switched off, and
calls run in a worker process, where the deadline of `reward.timeout_s` holds.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from dataclasses import dataclass
from typing import Any, ClassVar

from rlctl.errors import ConfigError
from rlctl.rewards.base import Place, RewardResult
from rlctl.rewards.math import answer_text, gold_number, visible
from rlctl.rewards.numbers import WINDOW_CHARS, shorten
from rlctl.types import Problem


@dataclass(frozen=True, slots=True)
class MathVerify:
    """The reward `math_verify`; its fields are the settings of `[reward.math_verify]`."""

    runs: ClassVar[Place] = "process"

    allow_unmarked: bool = False

    def __post_init__(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError(
                "reward 'math_verify' needs the package math-verify, which is not installed.",
                hint="pip install 'rlctl[math]'.",
            )

    def warm_up(self) -> None:
        """Import sympy, which takes a second or more, in a worker before its first call."""
        _parse(r"\boxed{x}")

    def __call__(self, problem: Problem, completion: str) -> RewardResult:
        text = visible(completion)
        form, answer = answer_text(text)
        if form is None and not self.allow_unmarked:
            return RewardResult(0.0, "no answer marker", parsed=False)
        # Unmarked, math-verify looks for an answer itself; the end of a text is where one stands.
        parsed = _parse(text[-WINDOW_CHARS:] if form is None else _boxed(answer))
        shown = shorten(answer if form else text[-40:])
        if not parsed:
            return RewardResult(0.0, f"cannot read {shown!r}", form or "unmarked", parsed=False)
        equal, why = _verify(_gold(problem.answer), parsed)
        return RewardResult(
            float(equal), why or f"{shown}, gold {shorten(_gold_text(problem.answer))}", form or "unmarked", parsed=True
        )

    def gold_complaint(self, problem: Problem) -> str | None:
        if _is_number(problem.answer):  # Without sympy, which takes milliseconds a gold.
            return None
        try:
            _gold(problem.answer)
        except ValueError as error:
            return str(error)
        return None

    def gold_completion(self, problem: Problem) -> str:
        return rf"\boxed{{{_gold_text(problem.answer)}}}"


def _is_number(answer: str) -> bool:
    try:
        gold_number(answer)
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=4096)  # All completions of a group share their gold.
def _gold(answer: str) -> Any:
    """The gold answer as math-verify reads it. Raises ValueError when it reads nothing."""
    text = _gold_text(answer)
    parsed = _parse(_boxed(text))
    if not parsed:
        raise ValueError(f"gold answer {shorten(text)!r} cannot be read by math-verify")
    return parsed


def _gold_text(answer: str) -> str:
    """What stands behind the last marker of a gold answer, or all of it; without dollars around it."""
    form, text = answer_text(answer)
    return (text if form else answer[:WINDOW_CHARS]).strip().strip("$").strip()


def _boxed(text: str) -> str:
    return rf"\boxed{{{text.strip().strip('$')}}}"


def _parse(text: str) -> Any:
    """What math-verify reads, empty when nothing; a text that it cannot read is not kept as one."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # It warns of the time-outs that are off.
    return math_verify.parse(text, fallback_mode="no_fallback", parsing_timeout=None)


def _verify(gold: Any, parsed: Any) -> tuple[bool, str]:
    """Whether they are equal; with a reason when they cannot be compared, which is the answer's fault."""
    import math_verify

    try:
        return bool(math_verify.verify(gold, parsed, timeout_seconds=None, raise_on_error=True)), ""
    # sympy raises almost anything on what it cannot compare. A MemoryError is no verdict.
    except MemoryError:
        raise
    except Exception as error:
        return False, f"cannot be compared: {type(error).__name__}"
