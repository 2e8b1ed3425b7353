"""`calculator`: works out what the policy writes in GSM8K's annotations.

When the text of a turn ends with `<<12+5=`, the answer `17>>` goes on right behind it, in the policy's own message, and
the policy writes on. What cannot be worked out is answered with `?>>` and counted as an error. It grades nothing.

Format: GSM8K, https://github.com/openai/grade-school-math (the calculator annotations `<<...>>`).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

from rlctl.environments.base import Action, Step
from rlctl.types import Problem

LONGEST = 64
"""Characters of an expression; a calculator has no longer line."""
LARGEST = 10**15
"""No result, whole or between, may exceed it: beyond, a float or a page no longer shows it exactly."""

_CALL = re.compile(r"<<([^<>=]*)=$")
_OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Calculator:
    """`decimals` is how many digits behind the point a result that is not whole is rounded to."""

    grades = False
    stop = ("=",)
    roles: tuple[str, ...] = ()
    runs = "inline"

    def __init__(self, *, decimals: int = 4) -> None:
        if isinstance(decimals, bool) or not isinstance(decimals, int) or not 0 <= decimals <= 12:
            raise ValueError(f"decimals = {decimals!r} must be a whole number from 0 to 12")
        self.decimals = decimals

    def reset(self, problem: Problem) -> None:
        """It remembers nothing."""

    def step(self, state: None, action: Action) -> Step:
        called = None if action.ended else _CALL.search(action.text)
        if called is None:
            return Step()
        value = calculate(called[1])
        if value is None:
            return Step(text="?>>", tool_calls=1, tool_errors=1)
        return Step(text=f"{shown(value, self.decimals)}>>", tool_calls=1)


def calculate(expression: str) -> Fraction | None:
    """The exact value of numbers with + - * / and brackets; None where it has none, or is beyond `LARGEST`."""
    text = expression.replace(",", "").replace("$", "").strip()
    if not text or len(text) > LONGEST or not re.fullmatch(r"[0-9.+\-*/() ]+", text):
        return None
    try:
        return _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Fraction:
    """Raises ValueError for what is no arithmetic."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        found = Fraction(str(node.value))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        found = _value(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        found = _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    else:
        raise ValueError(f"{type(node).__name__} is no arithmetic")
    if abs(found) > LARGEST:
        raise ValueError("too large")
    return found


def shown(value: Fraction, decimals: int) -> str:
    """As one writes it: 17, 0.5, -3.3333."""
    scaled = round(abs(value) * 10**decimals)
    whole, part = divmod(scaled, 10**decimals)
    digits = f"{part:0{decimals}d}".rstrip("0") if decimals else ""
    sign = "-" if value < 0 and scaled else ""
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"
