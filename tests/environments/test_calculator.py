"""The calculator's arithmetic, exact and bounded, and when it is called."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

from rlctl.environments.base import Action, Step
from rlctl.environments.calculator import Calculator, calculate, shown

NOTHING = Step()


def answer(text: str, *, ended: bool = False) -> Step:
    return Calculator().step(None, Action(text, ended))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12+5", "17"), ("12 - 5", "7"), ("3*4", "12"), ("7/2", "3.5"), ("10/3", "3.3333"), ("-10/3", "-3.3333"),
        ("(1+2)*3", "9"), ("1,000*2", "2000"), ("$5+$6", "11"), (".1+.2", "0.3"), ("-(4)", "-4"), ("2*-3", "-6"),
        ("1/100000", "0"), ("0-1/100000", "0"), ("999999999999999+0.25", "999999999999999.25"), ("00+1", "1"),
        ("1/2/2", "0.25"),
    ],
)  # fmt: skip
def test_values_are_exact_and_written_as_one_writes_them(expression: str, value: str) -> None:
    assert answer(f"It is <<{expression}=") == Step(text=f"{value}>>", tool_calls=1)


@pytest.mark.parametrize(
    "expression",
    ["1/0", "", "x+1", "2**9", "2**999999999", "7//2", "7%2", "1_000", "0x10", "9" * 60, "9999999999*9999999999", "(1",
     "__import__('os')", "1+" * 40 + "1", "(" * 60, "1e9", "١+١", "5 5", "1 if 1 else 2", "1j"],
)  # fmt: skip
def test_what_is_no_arithmetic_is_an_error_at_once(expression: str) -> None:
    start = time.process_time()
    assert answer(f"<<{expression}=") == Step(text="?>>", tool_calls=1, tool_errors=1)
    assert time.process_time() - start < 5  # and not for ever


@pytest.mark.parametrize("text", ["3*4=", "<<3*4", "<<3*4=12=", "<<3*4=12>>=", "<<3<4=", "", "="])
def test_it_speaks_only_where_an_annotation_is_open(text: str) -> None:
    assert answer(text) == NOTHING


def test_it_is_silent_behind_the_end_of_a_message() -> None:
    assert answer("<<3*4=", ended=True) == NOTHING


def test_rounding_is_as_set() -> None:
    assert [shown(Fraction(2, 3), digits) for digits in (0, 1, 6)] == ["1", "0.7", "0.666667"]
    assert calculate("1/3") == Fraction(1, 3)
    with pytest.raises(ValueError, match="decimals = -1"):
        Calculator(decimals=-1)
