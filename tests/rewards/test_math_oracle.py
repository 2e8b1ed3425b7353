"""The grader against an oracle that knows the value because it wrote the number, form by form."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.rewards.math import grade_gsm8k


@dataclass(frozen=True)
class Written:
    """A number and one way to write it."""

    value: Fraction
    text: str


@st.composite
def whole(draw: st.DrawFn) -> Written:
    magnitude = draw(st.integers(0, 10**12))
    plain, grouped = str(magnitude), f"{magnitude:,}"
    forms = [plain, grouped, grouped.replace(",", "{,}"), grouped.replace(",", "\u202f"), f"{plain}.", f"{plain}.00"]
    forms += ["0" + plain, f"{magnitude:e}" if magnitude < 10**6 else plain, plain.translate(FULL_WIDTH)]
    return Written(Fraction(magnitude), draw(st.sampled_from(forms)))


FULL_WIDTH = {ord("0") + digit: 0xFF10 + digit for digit in range(10)}


@st.composite
def decimal(draw: st.DrawFn) -> Written:
    before, after = draw(st.integers(0, 10**6)), draw(st.from_regex(r"\A[0-9]{1,6}\Z"))
    after = after.translate({ord(digit): str(place) for place, digit in enumerate("0123456789")})
    value = before + Fraction(int(after), 10 ** len(after))
    return Written(value, draw(st.sampled_from([f"{before}.{after}", f"{before:,}.{after}", f"{before}.{after}0"])))


@st.composite
def fraction(draw: st.DrawFn) -> Written:
    over, under = draw(st.integers(0, 999)), draw(st.integers(1, 999))
    forms = [f"{over}/{under}", rf"\frac{{{over}}}{{{under}}}", rf"\dfrac{{{over}}}{{{under}}}"]
    if over < under:
        first = draw(st.integers(1, 99))
        mixed = [
            f"{first} {over}/{under}",
            rf"{first}\frac{{{over}}}{{{under}}}",
            rf"{first} \tfrac{{{over}}}{{{under}}}",
        ]
        if draw(st.booleans()):
            return Written(first + Fraction(over, under), draw(st.sampled_from(mixed)))
    return Written(Fraction(over, under), draw(st.sampled_from(forms)))


@st.composite
def number(draw: st.DrawFn) -> Written:
    bare = draw(st.one_of(whole(), decimal(), fraction()))
    sign = draw(st.sampled_from(["", "", "", "+", "-", "\u2212", "\u2013"]))
    currency = draw(st.sampled_from(["", "", "$", r"\$", "\u20ac"]))
    unit = draw(st.sampled_from(["", "%", r"\%", " books", r"\text{ cm}", " dollars"]))
    return Written(bare.value if sign in ("", "+") else -bare.value, sign + currency + bare.text + unit)


PLACES = [
    "#### {}",
    "so\n#### {}\nbye",
    r"\boxed{{{}}}",
    r"thus $\boxed{{{}}}$.",
    "#### **{}**",
    "<think>#### 1</think>#### {}",
]


@settings(deadline=None, max_examples=300)
@given(answer=number(), gold=number(), place=st.sampled_from(PLACES))
def test_verdict_is_whether_the_values_are_equal(answer, gold, place):
    score = grade_gsm8k(place.format(answer.text), gold.text).score
    assert score == float(answer.value == gold.value)


@settings(deadline=None, max_examples=300)
@given(answer=number(), place=st.sampled_from(PLACES))
def test_the_same_value_is_right_in_any_form(answer, place):
    plain = f"{answer.value.numerator}/{answer.value.denominator}"
    assert grade_gsm8k(place.format(answer.text), plain).score == 1.0
    assert grade_gsm8k(f"#### {plain}", answer.text).score == 1.0


@settings(deadline=None, max_examples=300)
@given(answer=number(), place=st.sampled_from(PLACES), step=st.sampled_from([1, -1, 10, Fraction(1, 100)]))
def test_a_value_nearby_is_wrong(answer, place, step):
    near = answer.value + step
    assert grade_gsm8k(place.format(answer.text), f"{near.numerator}/{near.denominator}").score == 0.0


@settings(deadline=None, max_examples=300)
@given(one=number(), other=number())
def test_last_number_is_the_last_one_written(one, other):
    text = f"First {one.text}, and in the end it is {other.text}"
    plain = f"{other.value.numerator}/{other.value.denominator}"
    assert grade_gsm8k(text, plain, allow_last_number=True).score == 1.0
