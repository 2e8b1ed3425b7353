"""Grade an answer to a math problem by its final number, exactly: the `gsm8k` reward.

Where the answer stands:
  1. `#### N` and `\\boxed{N}` are markers. The textually last marker of either kind decides alone; when no number
     stands there, the answer is wrong. Falling back to an earlier marker would pay for hedging.
  2. Behind a marker the number comes first, after at most a currency sign, markup, or a short label such as `x =`
     or `The answer is`. Only the first one counts, so listing several gains nothing.
  3. Without a marker there is no answer, unless `allow_last_number`: then the completion's last number is it.
  4. Thinking is not answering: what stands in `<think>` blocks, closed or not, is not looked at (`visible`).

What a number is, and when two are the same, is `numbers.py`. Lists are equal when their members are, in order.
Nothing raises on any text, and time is linear in it.

Format: GSM8K, https://github.com/openai/grade-school-math (`####` before the answer, `<<...>>` calculator marks).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from rlctl.rewards.base import Place, RewardResult
from rlctl.rewards.numbers import WINDOW_CHARS, Numbers, read_last, read_leading, same_number, shorten, show
from rlctl.types import Problem

Form = Literal["hash", "boxed", "last-number"]


@dataclass(frozen=True, slots=True)
class Gsm8k:
    """The reward `gsm8k`; its fields are the settings of `[reward.gsm8k]`."""

    runs: ClassVar[Place] = "inline"

    allow_last_number: bool = False

    def __call__(self, problem: Problem, completion: str) -> RewardResult:
        grade = grade_gsm8k(completion, problem.answer, allow_last_number=self.allow_last_number)
        return RewardResult(grade.score, note=grade.reason, form=grade.form or "", parsed=grade.parsed)

    def gold_complaint(self, problem: Problem) -> str | None:
        try:
            gold_number(problem.answer)
        except ValueError as error:
            return str(error)
        return None

    def answer(self, problem: Problem, completion: str) -> Numbers | None:
        """What a majority vote counts: the completion's number; None when it has none."""
        return find_answer(completion, allow_last_number=self.allow_last_number)[1]

    def gold_completion(self, problem: Problem) -> str:
        return problem.answer if answer_text(problem.answer)[0] else f"#### {problem.answer}"


@dataclass(frozen=True, slots=True)
class Grade:
    """1.0 or 0.0, where the answer was found (None: nowhere), and what was compared."""

    score: float
    form: Form | None
    reason: str
    parsed: bool = False
    """Whether there was a number to compare."""


def grade_gsm8k(completion: str, gold: str, *, allow_last_number: bool = False) -> Grade:
    """Whether the completion's answer is the gold number. `gold` is a GSM8K answer field or a bare number.

    A gold that is no number scores 0 and says so; `gold_number` is for finding that out before a run.
    """
    try:
        right = gold_number(gold)
    except ValueError as error:
        return Grade(0.0, None, str(error))
    form, answer = find_answer(completion, allow_last_number=allow_last_number)
    if answer is None:
        return Grade(0.0, form, "no number" if form else "no answer marker")
    equal = len(answer) == len(right) and all(map(same_number, answer, right))
    return Grade(float(equal), form, f"{show(answer)}, gold {show(right)}", parsed=True)


@functools.lru_cache(maxsize=16384)  # All completions of a group share their gold; GSM8K has 7,473.
def gold_number(answer: str) -> Numbers:
    """The number after the last marker of a gold answer, or of the whole text when it has none.

    Raises ValueError when there is no number, or more than one outside a `[list]`.
    """
    form, marked = answer_text(answer)
    text = _CALCULATOR.sub("", marked if form else answer[:WINDOW_CHARS])
    leading = read_leading(text)
    if leading is None or re.search("[0-9]", _EXPONENT_OF_UNIT.sub("", leading.rest)):
        raise ValueError(f"gold answer {shorten(text or answer)!r} is not a number")
    return leading.numbers


_CALCULATOR = re.compile(r"<<[^<>]*>>")
_EXPONENT_OF_UNIT = re.compile(r"(?<=[A-Za-z}])\^?\{?[0-9]")


def find_answer(completion: str, *, allow_last_number: bool = False) -> tuple[Form | None, Numbers | None]:
    """Which form the answer has, and its value; (form, None) when the form is there but no number."""
    text = visible(completion)
    form, answer = answer_text(text)
    if form is not None:
        leading = read_leading(answer)
        return form, leading.numbers if leading else None
    if allow_last_number:
        return "last-number", read_last(text)
    return None, None


def visible(text: str) -> str:
    """The text without what was thought.

    A block ends at its first closing tag, since thinking may speak of the tag; one that is never closed goes to the
    end. A closing tag without an opening one ends thinking that the prompt began: what stands before it is dropped.
    """
    lowered = text.lower()
    if not any(word in lowered for word in _TAG_WORDS):
        return text
    kept: list[str] = []
    start, thinking = 0, False
    while tag := (_CLOSING if thinking else _TAGS).search(text, start):
        if thinking:
            thinking = False
        elif tag["close"]:
            kept.clear()
        else:
            kept.append(text[start : tag.start()])
            thinking = True
        start = tag.end()
    if not thinking:
        kept.append(text[start:])
    return kept[0] if len(kept) == 1 else "\n".join(kept)


_NAME = "(?:seed:)?(?:think|thinking|thought|reasoning) ?>"
_CLOSING = re.compile(f"</{_NAME}", re.IGNORECASE)
# A run of closing tags is as good as one, and costs less.
_TAGS = re.compile(f"(?:<(?P<close>/){_NAME})+|<{_NAME}", re.IGNORECASE)
_TAG_WORDS = ("think", "thought", "reasoning")


def answer_text(text: str) -> tuple[Form | None, str]:
    """Where the last marker is, and the text its number must begin."""
    hash_at, box_at = text.rfind("####"), text.rfind("\\boxed")
    if hash_at > box_at:
        return "hash", _after_hash(text, hash_at + len("####"))
    if box_at >= 0:
        return "boxed", _box_content(text, box_at + len("\\boxed"))
    return None, ""


def _after_hash(text: str, start: int) -> str:
    """The first line with something on it."""
    return text[start : start + WINDOW_CHARS].lstrip().partition("\n")[0]


def _box_content(text: str, start: int) -> str:
    """What a box holds: `{...}` up to its own closing brace, or the line of `\\boxed 7`; empty when never closed."""
    window = text[start : start + WINDOW_CHARS].lstrip()
    if not window.startswith("{"):
        return window.partition("\n")[0]
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", window, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return window[1 : brace.start()]
    return ""
