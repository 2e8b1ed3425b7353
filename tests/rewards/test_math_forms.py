"""The gsm8k grader on forms of one number and on what only looks like it: signs, currency, LaTeX, thinking."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from fractions import Fraction

import pytest

from rlctl.rewards.math import find_answer, gold_number, grade_gsm8k, visible
from rlctl.rewards.numbers import read_last


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        ("#### 3 / 4", "0.75"),
        ("#### 2 3 / 4", "2.75"),
        (r"\boxed{x \approx 3.14}", "3.14"),
        ("#### 58 / hour", "58"),
        ("#### 18\n", "18"),
        ("#### $18", "18"),
        ("#### 1 234", "1234"),
        ("#### 1'234", "1234"),
        ("#### 1\u2019234", "1234"),
        ("\\boxed{\\frac34}", "3/4"),
        ("\\boxed{\\frac{-3}{4}}", "-3/4"),
        ("\\boxed{-\\frac{3}{4}}", "-0.75"),
        ("\\boxed{\\frac{3}{-4}}", "-0.75"),
        ("\\boxed{-\\frac{-3}{4}}", "0.75"),
        ("\\boxed{1\\frac12}", "1.5"),
        ("\\boxed{1 \\frac{1}{2}}", "3/2"),
        ("\\boxed{-1\\frac{1}{2}}", "-1.5"),
        ("#### 1\xbd", "1.5"),
        ("#### \xbd", "0.5"),
        ("#### -\xbd", "-0.5"),
        ("#### 3\u20444", "0.75"),
        ("\\boxed{90^\\circ}", "90"),
        ("\\boxed{90^{\\circ}}", "90"),
        ("\\boxed{3 \\times 10^{6}}", "3000000"),
        ("#### 3 x 10^6", "3e6"),
        ("#### 10^6", "1000000"),
        ("#### - 5", "-5"),
        ("\\boxed{- 5}", "-5"),
        ("#### minus 5", "-5"),
        ("#### negative $5", "-5"),
        ("#### -$5", "-5"),
        ("#### -US$5", "-5"),
        ("#### US$5", "5"),
        ("#### USD 5", "5"),
        ("#### 5 USD", "5"),
        ("#### \u20a95,000", "5000"),
        ("#### Rs. 500", "500"),
        ("\\boxed{\\text{Answer: }-7}", "-7"),
        ("\\boxed{\\text{Total} = 7}", "7"),
        ("\\boxed{x=-7}", "-7"),
        ("\\boxed{\\theta = 30^\\circ}", "30"),
        ("#### 7 (seven)", "7"),
        ("#### 7/\\text{hour}", "7"),
        ("#### \u0664\u0662", "42"),
        ("#### \U0001d7d2\U0001d7d0", "42"),
        ("#### 18<|im_end|>", "18"),
        ("#### <answer>7</answer>", "7"),
        ("#### <b>7</b>", "7"),
        ("\\boxed{7} dollars", "7"),
        ("$\\boxed{7}$", "7"),
        ("$$\\boxed{\\$7}$$", "7"),
        ("\\boxed{7\\%}", "7"),
        ("\\boxed{\\text{\\$}7}", "7"),
        ("\\boxed{\\mathrm{7}}", "7"),
        ("\\boxed{\\left(7\\right)}", "7"),
        ("#### \\(7\\)", "7"),
        ("#### $7$", "7"),
        ("#### $$7$$", "7"),
        ("\\boxed{7 \\text{ apples}}", "7"),
        ("\\boxed{1{,}234{,}567.5}", "1234567.5"),
        ("#### 5!", "5"),
        ("#### 1_000", "1000"),
        ("#### **Answer:** 7", "7"),
        ("#### Final Answer: $7", "7"),
        ("#### 7, because", "7"),
        ("####7", "7"),
        ("##### 7", "7"),
        ("#### 7\u200b", "7"),
        ("#### \u200b7", "7"),
        ("#### \u20117", "-7"),
        ("#### .75", "3/4"),
        ("#### 66.67%", "66.67"),
        ("#### 1e3", "1000"),
        ("#### 7th", "7"),
        ("\\boxed{7^{th}}", "7"),
        ("\\boxed{7^\\text{th}}", "7"),
        ("#### about 7", "7"),
        ("#### (7)", "7"),
        ('#### "7"', "7"),
        ("#### \u201c7\u201d", "7"),
        ("#### 7 = 7", "7"),
        ("#### = 7", "7"),
        ("#### 3 hours 20 minutes", "3"),
        ("\\boxed{\\dfrac{1,000}{3}}", "1000/3"),
        ("#### -0", "0"),
        ("\\boxed{\\boxed{7}}", "7"),
        ("\\boxed{{7}}", "7"),
        ("\\boxed{\\{7\\}}", "7"),
        ("\\boxed {7}", "7"),
        ("#### 1 000 000", "1000000"),
        ("#### 1,000,000.00", "1000000"),
        ("#### 1,000.5", "1000.5"),
        ("#### \uff11\uff0c\uff12\uff13\uff14", "1234"),
        ("#### 5 100,000", "5"),
        ("#### 2 3/4 cups", "2.75"),
        ("\\boxed{7\\,\\text{cm}}", "7"),
        ("\\boxed{7~\\text{cm}}", "7"),
        ("#### 7.", "7"),
        ("#### 7.00 .", "7"),
        ("\\boxed{\\$1{,}234.50}", "1234.5"),
        ("\\boxed{\\pounds 5}", "5"),
        ("####\r\n7", "7"),
        ("#### 7\r\n", "7"),
        ("#### 12 34", "12"),
    ],
)
def test_every_form_of_the_number_is_right(completion, gold):
    assert grade_gsm8k(completion, gold).score == 1.0


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        ("#### 1 234", "1"),
        ("\\boxed{7\\sqrt{2}}", "7"),
        ("\\boxed{7\\pi}", "7"),
        ("#### 7\u03c0", "7"),
        ("\\boxed{10^{99999}}", "1"),
        ("#### 2^10", "2"),
        ("#### \u20ac1.234,56", "1234.56"),
        ("#### 3/-4", "3"),
        ("#### 7-(3)", "7"),
        ("#### \u2463", "4"),
        ("#### 12,34,567", "1234567"),
        ("#### 1.5.2", "1.5"),
        ("#### 5^2", "5"),
        ("#### 101_2", "101"),
        ("#### \u207b7", "-7"),
        ("#### \xb17", "7"),
        ("#### 0.333", "1/3"),
        ("#### 10:30", "10"),
        ("\\boxed{\\frac{1}{0}}", "1"),
        ("#### 5'10", "5"),
        ("\\boxed{7", "7"),
        ("#### 100,00", "100"),
        ("#### 2-3/4", "2"),
        ("#### 2-1/2 cups", "2.5"),
        ("\\boxed{0.\\overline{3}}", "1/3"),
        ("#### $1,2", "12"),
        ("#### 1,,234", "1234"),
        ("#### --5", "5"),
        ("#### +-5", "-5"),
        ("#### 5+", "5"),
    ],
)
def test_what_only_looks_like_the_number_is_wrong(completion, gold):
    assert grade_gsm8k(completion, gold).score == 0.0


# Thinking


@pytest.mark.parametrize(
    ("completion", "gold", "score"),
    [
        ("<think>#### 5</think>#### 7", "7", 1.0),
        ("<think>#### 5</think>#### 7", "5", 0.0),
        ("<think>#### 7", "7", 0.0),
        ("#### 7</think>", "7", 0.0),
        ("#### 7</think>\n#### 8", "8", 1.0),
        ("<think>a</think> #### 7 <think> #### 8", "7", 1.0),
        ("<think> the <think> tag </think> #### 3 </think> #### 4", "4", 1.0),
        ("<THINK>#### 7</THINK>", "7", 0.0),
        ("#### 7 <think>hm</think>", "7", 1.0),
        ("<think>x</think>#### <think>y</think>7", "7", 1.0),
    ],
)
def test_what_is_thought_is_no_answer(completion, gold, score):
    assert grade_gsm8k(completion, gold).score == score


def test_last_number_is_looked_for_outside_of_thinking_too():
    assert find_answer("7 <think> 8", allow_last_number=True) == ("last-number", (Fraction(7),))
    assert find_answer("<think> 8", allow_last_number=True) == ("last-number", None)


def test_text_without_thinking_is_left_as_it_is():
    assert visible("I think so <b>7</b>") == "I think so <b>7</b>"


# Golds


@pytest.mark.parametrize(
    ("gold", "value"),
    [
        ("7 m^2", Fraction(7)),
        (r"7\text{ cm}^{2}", Fraction(7)),
        (r"so the share is \boxed{\frac{3}{4}}.", Fraction(3, 4)),
        ("1 1/2", Fraction(3, 2)),
        ("-$1,020", Fraction(-1020)),
        ("5 million", Fraction(5)),
    ],
)
def test_gold_may_have_unit_box_and_fraction(gold, value):
    assert gold_number(gold) == (value,)


@pytest.mark.parametrize("gold", ["5 of 7", "3 or 4", r"\boxed{}", r"\boxed{x}", "1e999999999", "9" * 5000, "#### 7 8"])
def test_gold_that_could_be_several_or_no_number_raises(gold):
    with pytest.raises(ValueError, match="is not a number"):
        gold_number(gold)


# Time

FLOODS = [
    "9", "1 ", "1,", "1_", "1/", "1e", "1^", "{", "}", "[1,", "(", " ", "\t", "-", "- ", "$", "US$", "~", "*", "<",
    "<a>", "\\", "\\boxed{", "\\boxed{\\frac", "\\frac{", "\\frac{1}{", "\\text{", "10^{", "x10^", "#### ", "####\n",
    "is ", "<think>", "</think>", "<think", "\u00bd", "\u00e91", "\U0001f600",
]  # fmt: skip


@pytest.mark.parametrize("piece", FLOODS)
def test_a_megabyte_of_anything_costs_a_few_passes_over_it(piece):
    flood = (piece * (1_000_000 // len(piece) + 1))[:1_000_000]
    # A pass in plain Python takes some 30 ms; a quadratic pattern would take a million passes.
    limit = 10 * _seconds(lambda: sum(1 for _ in flood))
    for text in ("#### " + flood, "\\boxed{" + flood, flood + "#### 5"):
        assert _seconds(lambda text=text: grade_gsm8k(text, "5", allow_last_number=True)) < limit


def _seconds(work: Callable[[], object]) -> float:
    """Of computing: what else the machine does is no matter."""

    def once() -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    return min(once() for _ in range(2))


def test_last_number_is_the_same_however_much_text_stands_before_it():
    rng = random.Random(0)
    ends = [
        "is 12.",
        "so 1/2",
        r"gives \frac{3}{4}",
        "3 x 10^6",
        "was [1, 2]",
        "for 1,2,3",
        "a 7 1/2",
        "= -5",
        "12/34/56",
        "US$5",
    ]
    for end in ends:
        alone = read_last("\n" + end)
        for _ in range(40):
            before = "".join(
                rng.choice(["so ", "of 12 ", "\n", "x = 3, ", "{", r"\, "]) for _ in range(rng.randrange(60))
            )
            assert read_last(before + "\n" + end) == alone


@pytest.mark.parametrize(
    "completion", ["#### *12*", "#### *$12*", "#### ***12***", "#### **12**", "*The answer is 12*"]
)
def test_stars_that_close_emphasis_are_no_multiplication(completion):
    assert grade_gsm8k(completion, "12", allow_last_number=True).score == 1.0


@pytest.mark.parametrize(
    "completion",
    [
        *("#### 12*", "#### 12**3", "#### 12 ** 3", r"\boxed{12\,\times\,10^3}", r"\boxed{12\ + 3}", "#### 12\xb2"),
        *(r"\boxed{12x + 3}", r"\boxed{12_{8}}", r"\boxed{12.\overline{3}}", r"\boxed{12.5\overline{3}}", "3*12*"),
        *("2^12", "2^{12}", "2 ** 12", "* item: 12*"),
    ],
)
def test_part_of_a_larger_expression_is_not_the_answer(completion):
    assert grade_gsm8k(completion, "12", allow_last_number=True).score == 0.0
    assert grade_gsm8k(completion, "12.5", allow_last_number=True).score == 0.0


@pytest.mark.parametrize(
    "completion",
    ["#### 4.5\xd710\xb3", r"\boxed{4.5\,\times\,10^{3}}", r"\boxed{4.5 \times {10}^3}", "#### 4500\xd710\u2070"],
)
def test_powers_of_ten_are_read_however_they_are_set(completion):
    assert grade_gsm8k(completion, "4500").score == 1.0


@pytest.mark.parametrize(
    "completion",
    [
        *("The area is 45 cm^2.", "The area is 45 m2.", "It is 45 m\xb2", r"It is $45\text{ cm}^{2}$.", "45 m/s^2"),
        *(r"\boxed{\color{red}45}", r"\boxed{\textcolor{red}{45}}", r"\boxed{\quad 45}", r"\boxed{\large 45}"),
        "#### approx. 45",
    ],
)
def test_powers_of_units_and_type_setting_do_not_hide_the_number(completion):
    assert grade_gsm8k(completion, "45", allow_last_number=True).score == 1.0


@pytest.mark.parametrize("gold", ["5 ####", "He has 5.\n#### ", r"5 \boxed{}", "5\xb2"])
def test_gold_whose_marker_holds_no_number_is_refused(gold):
    with pytest.raises(ValueError, match="is not a number"):
        gold_number(gold)
