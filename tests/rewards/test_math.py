"""The gsm8k grader: reported faults of such graders, real completions, and properties over random forms."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.rewards.examples import GSM8K as GSM8K_EXAMPLES
from rlctl.rewards.math import find_answer, gold_number, grade_gsm8k
from rlctl.rewards.numbers import read_last, read_leading

CASES = Path(__file__).parents[2].parent / "shared" / "cases" / "gsm8k_completions.jsonl"


def grade(completion: str, gold: str) -> float:
    """The score when the last number counts too, as the field faults state their cases."""
    return grade_gsm8k(completion, gold, allow_last_number=True).score


# Field faults 051 to 070


def test_051_words_without_a_number_score_nothing():
    assert grade("I do not know", "5") == 0.0


def test_052_comma_after_the_number_belongs_to_the_sentence():
    assert grade("So 72 books, in all.", "72") == 1.0


def test_052_lone_comma_is_no_number():
    result = grade_gsm8k("#### ,", "72")
    assert (result.score, result.form, result.reason) == (0.0, "hash", "no number")


@pytest.mark.parametrize(
    "completion",
    ["6,400", "$6,400", r"\boxed{$6{,}400}", r"\boxed{6\,400}", "6,400.00", "6400 dollars", r"\boxed{6,\!400}"],
)
def test_054_thousands_separators_do_not_cut_the_number(completion):
    assert grade(completion, "6400") == 1.0


@pytest.mark.parametrize(
    ("completion", "gold", "score"),
    [
        (r"\boxed{7,000}", "7000", 1.0),
        ("6,40", "640", 0.0),
        ("6,40", "40", 0.0),
        ("6,400", "400", 0.0),
        ("7,000", "0", 0.0),
        ("1,2345", "12345", 0.0),
        ("0,123", "123", 0.0),
        ("1.234.567", "1234567", 0.0),
    ],
)
def test_054_separators_count_in_groups_of_three_only(completion, gold, score):
    assert grade(completion, gold) == score


@pytest.mark.parametrize(
    ("completion", "gold", "score"),
    [
        ("[3.5,41.25]", "[3.5, 41.25]", 1.0),
        ("1,2,3", "123", 0.0),
        ("1,2,3", "3", 0.0),
        ("[1,2]", "[2,1]", 0.0),
        ("[1,2]", "[1,2,3]", 0.0),
        ("[1,234, 5,678]", "[1234, 5678]", 1.0),
        ("as shown in [4]", "4", 1.0),
        ("#### [3.5, 41.25]", "[3.5,41.25]", 1.0),
    ],
)
def test_055_list_is_compared_member_by_member(completion, gold, score):
    assert grade(completion, gold) == score


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        ("\u22125", "-5"),
        ("\u20135", "-5"),
        ("-5", "-5"),
        ("\uff0d5", "-5"),
        ("\uff11\uff12", "12"),
        ("1\u00a0234", "1234"),
        ("1\u202f234", "1234"),
        ("#### \u22121\u00a0234", "-1234"),
    ],
)
def test_057_typographic_signs_digits_and_spaces_are_read(completion, gold):
    assert grade(completion, gold) == 1.0


def test_057_dash_behind_a_number_is_no_minus():
    assert grade("between 3\u20135", "5") == 1.0


def test_superscript_is_no_digit():
    assert grade("the area is 5 m\u00b2", "5") == 1.0


@pytest.mark.parametrize("pattern", ["{}", "#### {}", r"\boxed{{{}}}"])
@pytest.mark.parametrize(
    ("number", "score"),
    [("$46.00", 1), ("46.", 1), ("46.0", 1), ("+46", 1), ("046", 1), ("4.6e1", 1), ("46.001", 0)],
)
def test_058_spellings_of_a_number_are_equal(pattern, number, score):
    assert grade(pattern.format(number), "46") == score


def test_058_rounding_noise_of_a_double_is_forgiven():
    assert grade("0.30000000000000004", "0.3") == 1.0


def test_058_whole_numbers_are_compared_exactly():
    assert grade("10000000000000001", "10000000000000000") == 0.0


def test_060_long_remark_after_the_answer_is_no_harm():
    assert grade_gsm8k("#### 42" + " and so it is" * 40, "42").score == 1.0


def test_061_gold_is_read_after_the_last_marker_without_calculator_marks():
    gold = "6+4=<<6+4=10>>10, then x102\n#### 1,020"
    assert gold_number(gold) == (Fraction(1020),)
    assert grade_gsm8k("#### 1020", gold).score == 1.0
    assert gold_number("#### <<3*4=12>>12") == (Fraction(12),)


@pytest.mark.parametrize("gold", ["", "twelve", "#### ", "5 #### none", "1, 2, 3", "58*", "1/0", "12:30"])
def test_061_gold_that_is_no_number_raises(gold):
    with pytest.raises(ValueError, match="is not a number"):
        gold_number(gold)


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        (r"\boxed 7 ... \boxed{8}", 0.0),
        (r"\boxed{7} ... \boxed{", 0.0),
        (r"\boxed{8} then \boxed{7}", 1.0),
        (r"\boxed{7} then \boxed{}", 0.0),
        (r"\boxed{7} then \boxed{?}", 0.0),
        (r"\boxed 7", 1.0),
        (r"\boxed{\text{Answer: }7}", 1.0),
        (r"\boxed{\boxed{7}}", 1.0),
        (r"\boxed{x = 7}", 1.0),
        (r"\boxed{7\text{ cm}^{2}}", 1.0),
    ],
)
def test_063_last_box_decides_alone(completion, score):
    assert grade(completion, "7") == score


@pytest.mark.parametrize(
    ("completion", "score", "form"),
    [
        ("#### 7 or rather \\boxed{8}", 0.0, "boxed"),
        ("\\boxed{8}, no: #### 7", 1.0, "hash"),
        ("#### \\boxed{7}", 1.0, "boxed"),
        ("#### Final answer\n\\boxed{7}", 1.0, "boxed"),
        ("#### 7\n#### 8", 0.0, "hash"),
        ("#### 7\n#### none", 0.0, "hash"),
    ],
)
def test_last_marker_of_either_kind_decides_alone(completion, score, form):
    result = grade_gsm8k(completion, "7", allow_last_number=True)
    assert (result.score, result.form) == (score, form)


@pytest.mark.parametrize(("completion", "score"), [("8.40%", 1.0), ("8.4", 1.0), ("0.084", 0.0)])
def test_064_percent_sign_is_ignored(completion, score):
    assert grade(completion, "8.4%") == score


def test_064_number_is_read_whole():
    assert read_last("Score: 12") == (Fraction(12),)
    assert read_last("Score: 2e-1") == (Fraction(1, 5),)


@pytest.mark.parametrize(("completion", "gold"), [("??", "!!"), ("", ""), ("58*", "58"), ("*", "*"), ("-", "-")])
def test_066_two_unreadable_answers_are_not_equal(completion, gold):
    assert grade(completion, gold) == 0.0


def test_066_unreadable_gold_says_so():
    assert grade_gsm8k("??", "!!").reason == "gold answer '!!' is not a number"


async def _grade_in_a_task() -> float:
    return await asyncio.create_task(_grade_soon())


async def _grade_soon() -> float:
    return grade("#### 4", "4")


def test_067_grades_in_any_thread_task_or_process():
    with ThreadPoolExecutor(1) as pool:
        in_thread = pool.submit(grade, "#### 4", "4").result()
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        in_process = processes.apply(grade_gsm8k, ("#### 4", "4")).score
    in_task = asyncio.run(_grade_in_a_task())
    assert [grade("#### 4", "4"), in_thread, in_task, in_process] == [1.0] * 4


@pytest.mark.parametrize(
    ("completion", "gold"), [("#### 12", "2"), ("1 2 3 4 5 6", "2"), ("#### 11.5", "1.5"), ("#### 5 or 2", "2")]
)
def test_069_gold_inside_another_number_or_a_list_is_not_right(completion, gold):
    assert grade(completion, gold) == 0.0


# Rules of our own


def test_last_number_counts_only_when_allowed():
    assert grade_gsm8k("The answer is 72.", "72") == grade_gsm8k("no number at all", "72")
    assert grade_gsm8k("The answer is 72.", "72", allow_last_number=True).form == "last-number"


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        ("**58**", "58"),
        ("#### **58**", "58"),
        ("#### Answer: 58", "58"),
        ("#### The answer is 58", "58"),
        ("####\n58", "58"),
        ("#### 58/hour", "58"),
        ("#### $-58", "-58"),
        ("#### -$58", "-58"),
        ("#### 42 = 42", "42"),
        ("a 58-inch ribbon", "58"),
        ("#### 1/2", "0.5"),
        (r"\boxed{\frac{1}{2}}", "0.5"),
        (r"\boxed{-\dfrac{1}{2}}", "-0.5"),
        (r"\boxed{2\frac{1}{2}}", "2.5"),
        ("#### 2 1/2 hours", "2.5"),
        ("#### .5", "1/2"),
    ],
)
def test_markup_labels_units_and_fractions_are_read(completion, gold):
    assert grade(completion, gold) == 1.0


@pytest.mark.parametrize(
    "completion",
    ["#### 3 + 4", "#### 7-3", "#### 7*1", "#### 7:30", "#### 7/0", "#### 7/1/1", "#### Step 7: add", "7 +", "7 ="],
)
def test_unfinished_arithmetic_is_no_answer(completion):
    assert grade(completion, "7") == 0.0


@pytest.mark.parametrize(
    "number", ["1e999999999", "1e-999999999", "9" * 5000, "1e" + "9" * 5000, "1/" + "0" * 5000, "0." + "1" * 5000]
)
def test_absurd_number_is_no_number(number):
    assert read_leading(number) is None
    assert grade(f"#### {number}", "1") == 0.0


def test_the_leading_numbers_are_read_exactly():
    assert read_leading("$1,234.5 in all").numbers == (Fraction(2469, 2),)
    assert read_leading("[1, 2]").numbers == (Fraction(1), Fraction(2))
    assert read_leading("words 5") is None


def test_find_answer_names_the_form_even_without_a_number():
    assert find_answer("#### none") == ("hash", None)
    assert find_answer("none") == (None, None)


# Real completions


@pytest.mark.skipif(not CASES.exists(), reason=f"no {CASES.name} beside the repository")
def test_grade_agrees_with_the_label_of_every_real_completion():
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    wrong = [row["id"] for row in rows if (grade(row["completion"], row["gold_text"]) == 1.0) != row["exact_label"]]
    assert (len(rows), wrong) == (2638, [])


# Properties

PLAIN = st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9)
SPELLINGS = st.sampled_from(
    [
        "{:f}",
        "{:,f}",
        "${:f}",
        "{:f}%",
        "{:f} dollars",
        "**{:f}**",
        "{:e}",
        "[{:f}, 2]",
        "{:f}.",
        "({:f})",
        "\uff04{:f}",
    ]
)
PIECES = st.sampled_from(
    [*"0123456789.,-+/*%$ \n[](){}e=:", "####", "\\boxed{", "\\frac{1}{2}", "{,}", "\\,", "\u00a0", "\u2212", "x"]
)


@settings(deadline=None)  # A busy machine is no fault.
@given(number=PLAIN, spelling=SPELLINGS, pattern=st.sampled_from(["{}", "#### {}", "so\n#### {}\nbye"]))
def test_070_every_number_equals_itself_in_every_form(number, spelling, pattern):
    text = spelling.format(number)
    assert grade(pattern.format(text), text) == 1.0


@settings(deadline=None)  # A busy machine is no fault.
@given(number=PLAIN, one=SPELLINGS, other=SPELLINGS)
def test_grade_is_symmetric(number, one, other):
    left, right = one.format(number), other.format(number)
    assert grade(left, right) == grade(right, left)


@settings(deadline=None)  # A busy machine is no fault.
@given(st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join)), st.lists(PIECES, max_size=10).map("".join))
def test_no_text_raises(completion, gold):
    assert grade(completion, gold) in (0.0, 1.0)


@pytest.mark.parametrize(
    "piece", ["9", "1 ", "1,", "1/", "\\boxed{", "#### ", "\\frac{", "{", "*", " ", "-", "\u00e91", "\U0001f600", "a "]
)
def test_a_megabyte_takes_no_longer_than_a_few_passes_over_it(piece):
    text = piece * (1_000_000 // len(piece))
    # A quadratic pattern would take a million passes.
    assert _seconds(lambda: grade(text, "5")) < 4 * _seconds(lambda: sum(1 for _ in text))


def _seconds(work: Callable[[], object]) -> float:
    def once() -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    return min(once() for _ in range(3))


@pytest.mark.parametrize("example", GSM8K_EXAMPLES, ids=lambda example: example.rule)
def test_the_rules_that_are_printed_are_those_that_grade(example):
    # Field fault 064.
    grade = grade_gsm8k(example.completion, example.gold, allow_last_number=example.allow_last_number)
    assert grade.score == example.score
