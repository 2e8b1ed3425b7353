"""What the built-in rewards give for telling examples: the rules, as a table that is graded when it is shown.

`rlctl reward describe gsm8k` prints it, and a test checks each row, so it cannot drift from the grader.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Example:
    """A completion, the gold answer, the score it gets, and the rule it shows."""

    completion: str
    gold: str
    score: float
    rule: str
    allow_last_number: bool = False


GSM8K = (
    Example("3 + 4 = 7\n#### 7", "7", 1.0, "the number after ####"),
    Example(r"so \boxed{7}", "7", 1.0, "or in a box"),
    Example(r"\boxed{7} ... \boxed{8}", "7", 0.0, "the last marker decides alone"),
    Example("the answer is 7", "7", 0.0, "no marker, no answer"),
    Example("the answer is 7", "7", 1.0, "unless reward.gsm8k.allow_last_number", allow_last_number=True),
    Example("#### $6,400.00", "6400", 1.0, "currency, groups of three and trailing zeros"),
    Example("#### 6,40", "640", 0.0, "groups of three only"),
    Example("#### 6400 dollars", "6400", 1.0, "a unit may follow"),
    Example("#### 8.40%", "8.4", 1.0, "a percent sign is ignored"),
    Example("#### 0.084", "8.4%", 0.0, "and never divides by 100"),
    Example(r"\boxed{-\frac{3}{4}}", "-0.75", 1.0, "fractions, in LaTeX too"),
    Example("#### 2 1/2 cups", "2.5", 1.0, "mixed numbers"),
    Example(r"\boxed{3 \times 10^{6}}", "3000000", 1.0, "powers of ten"),
    Example("<think>#### 7</think> #### 8", "7", 0.0, "what is thought is no answer"),
    Example("<think> #### 7", "7", 0.0, "nor what is thought to the end"),
    Example("#### \u22125", "-5", 1.0, "typographic minus signs and dashes"),
    Example("#### 4.6e1", "46", 1.0, "scientific notation"),
    Example("#### 46.001", "46", 0.0, "compared exactly"),
    Example("#### 12", "2", 0.0, "as numbers, not as text"),
    Example("#### [3.5,41.25]", "[3.5, 41.25]", 1.0, "lists member by member"),
    Example(r"\boxed{7\sqrt{2}}", "7", 0.0, "a multiple of a root is another number"),
    Example("#### 58*", "58", 0.0, "unfinished arithmetic is no number"),
)

BY_NAME = {"gsm8k": GSM8K}
