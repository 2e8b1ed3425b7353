"""Arithmetic word problems in GSM8K's format, made on the spot: endless, and nothing to download.

A problem is a short story and a calculation of two steps; its answer is worked out as GSM8K's are: each step as
`12+5=<<12+5=17>>17`, then the result after `####`. All numbers stay between 0 and 99.
Unlike a data set, a split is a rule and not a file. The calculation of a problem (its two equations, without
names or objects) belongs to one split by its hash, so no seed can bring an eval problem into training, not even
in other words.

Format: GSM8K, https://github.com/openai/grade-school-math (the calculator annotations `<<...>>`).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rlctl.types import Problem

Split = Literal["train", "eval"]
Operator = Literal["+", "-", "*", "/"]

EVAL_SHARE_OF_256 = 64
"""How many of the 256 values of a hash's first byte are eval: a quarter, so that both splits are drawn quickly."""

LARGEST_NUMBER = 99
"""No quantity in a problem or its solution exceeds it: two digits are what a tiny model can learn to calculate with."""


def word_problem(seed: int, index: int, *, split: Split) -> Problem:
    """Problem number `index` of the endless list that `seed` names: a pure function of its arguments.

    The two splits share no question and no calculation, whatever the seeds (see the module's docstring).
    """
    story = story_of(seed, index, split=split)
    return Problem(
        id=f"word-problems/{split}/{seed}/{index}",
        question=story.question,
        answer=worked_answer(story.steps),
        source="word-problems",
    )


@dataclass(frozen=True, slots=True)
class Step:
    """One equation of a solution and the words before and after it; an operand None is the last step's result."""

    left: int | None
    operator: Operator
    right: int | None
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Equation:
    """A step with its numbers filled in; as text, the side left of the equals sign."""

    left: int
    operator: Operator
    right: int
    result: int

    def __str__(self) -> str:
        return f"{self.left}{self.operator}{self.right}"


@dataclass(frozen=True, slots=True)
class Story:
    """A question with the steps that solve it, before they are written out."""

    question: str
    steps: tuple[Step, ...]


def story_of(seed: int, index: int, *, split: Split) -> Story:
    """The story behind `word_problem(seed, index, split=split)`, for whoever needs its steps one by one."""
    # A text seed is hashed with SHA-512 by `random`, so neither PYTHONHASHSEED nor the global generator matters.
    rng = random.Random(f"word-problems/{split}/{seed}/{index}")
    while True:
        story = rng.choice(_KINDS)(rng)
        if story is not None and split_of(story.steps) == split:
            return story


def split_of(steps: Sequence[Step]) -> Split:
    """Which split a calculation belongs to; names, objects and wording have no say in it."""
    calculation = ";".join(str(equation) for equation in solve(steps))
    first_byte = hashlib.sha256(calculation.encode()).digest()[0]
    return "eval" if first_byte < EVAL_SHARE_OF_256 else "train"


def worked_answer(steps: Sequence[Step]) -> str:
    """The solution as GSM8K writes it, ending in `#### ` and the result."""
    return written_answer(steps, equations=solve(steps))


def written_answer(steps: Sequence[Step], *, equations: Sequence[Equation]) -> str:
    """The steps' words around the given equations, which need not be right: [steps] -> text."""
    lines = [
        f"{step.before}{equation}=<<{equation}={equation.result}>>{equation.result}{step.after}\n"
        for step, equation in zip(steps, equations, strict=True)
    ]
    return "".join(lines) + f"#### {equations[-1].result}"


def solve(steps: Sequence[Step]) -> list[Equation]:
    """The equations that the steps come to: [steps] -> [steps]."""
    equations: list[Equation] = []
    for step in steps:
        previous = equations[-1].result if equations else 0
        left = previous if step.left is None else step.left
        right = previous if step.right is None else step.right
        equations.append(Equation(left, step.operator, right, calculate(left, step.operator, right)))
    return equations


def calculate(left: int, operator: Operator, right: int) -> int:
    """The four operations on whole numbers; division drops the remainder (no problem here has one)."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    return left * right if operator == "*" else left // right


# The kinds of story. Each draws one, or returns None when the numbers drawn do not suit it.


def _changes(rng: random.Random) -> Story | None:
    """Somebody has some things, and the number changes twice."""
    name, things = rng.choice(_NAMES), rng.choice(_THINGS)
    start = rng.randint(10, 60)
    first, second = _change(rng, name), _change(rng, name)
    steps = (
        Step(start, first.operator, first.amount, "Then: ", f" {things}."),
        Step(None, second.operator, second.amount, "Now: ", f" {things}."),
    )
    opening = rng.choice((f"{name} has {start} {things}.", f"There are {start} {things} in the room of {name}."))
    closing = rng.choice((f"How many {things} are there now?", f"How many {things} does {name} have now?"))
    return _story(f"{opening} {first.sentence} {second.sentence} {closing}", steps)


def _packs_and_change(rng: random.Random) -> Story | None:
    """Containers with equally many things each, then one change."""
    name, things, containers = rng.choice(_NAMES), rng.choice(_THINGS), rng.choice(_CONTAINERS)
    packs, each = rng.randint(2, 9), rng.randint(2, 9)
    change = _change(rng, name)
    steps = (
        Step(packs, "*", each, "In all: ", f" {things}."),
        Step(None, change.operator, change.amount, "Now: ", f" {things}."),
    )
    opening = rng.choice(
        (
            f"{name} has {packs} {containers} with {each} {things} in each.",
            f"{name} fills {packs} {containers} with {each} {things} each.",
        )
    )
    return _story(f"{opening} {change.sentence} How many {things} does {name} have now?", steps)


def _two_owners(rng: random.Random) -> Story | None:
    """One has so many more or fewer than the other; how many together."""
    name, other = rng.sample(_NAMES, 2)
    things = rng.choice(_THINGS)
    own, difference = rng.randint(5, 40), rng.randint(2, 20)
    operator: Operator = rng.choice(("+", "-"))
    steps = (
        Step(own, operator, difference, f"{other}: ", f" {things}."),
        Step(own, "+", None, "Together: ", f" {things}."),
    )
    compared = f"{other} has {difference} {'more' if operator == '+' else 'fewer'} than {name}."
    return _story(f"{name} has {own} {things}. {compared} How many {things} do they have together?", steps)


def _purchase(rng: random.Random) -> Story | None:
    """Some things at a price, paid with a sum; how much is left."""
    name, things = rng.choice(_NAMES), rng.choice(_THINGS)
    count, price, money = rng.randint(2, 9), rng.randint(2, 9), rng.randint(20, 90)
    steps = (
        Step(count, "*", price, "Cost: ", " dollars."),
        Step(money, "-", None, "Left: ", " dollars."),
    )
    opening = rng.choice(
        (
            f"{name} has {money} dollars and buys {count} {things} for {price} dollars each.",
            f"{name} buys {count} {things} at {price} dollars each and pays with {money} dollars.",
        )
    )
    return _story(f"{opening} How many dollars are left?", steps)


def _remaining_pages(rng: random.Random) -> Story | None:
    """So many pages a day for some days; how many of the book are still to read."""
    name = rng.choice(_NAMES)
    days, pages, book = rng.randint(2, 9), rng.randint(2, 9), rng.randint(20, 90)
    steps = (
        Step(pages, "*", days, "Read: ", " pages."),
        Step(book, "-", None, "Left: ", " pages."),
    )
    opening = f"{name} reads {pages} pages a day for {days} days. The book has {book} pages."
    return _story(f"{opening} How many pages are left to read?", steps)


_KINDS: tuple[Callable[[random.Random], Story | None], ...] = (
    _changes,
    _changes,
    _packs_and_change,
    _two_owners,
    _purchase,
    _remaining_pages,
)


def _story(question: str, steps: tuple[Step, ...]) -> Story | None:
    """The story, unless a number of its solution is out of range or a half would not be whole."""
    for equation in solve(steps):
        if not 0 < equation.result <= LARGEST_NUMBER:
            return None
        if equation.operator == "/" and equation.left % equation.right:
            return None
    return Story(question, steps)


@dataclass(frozen=True, slots=True)
class _Change:
    """Something that happens to a quantity, and the sentence that says so."""

    operator: Operator
    amount: int
    sentence: str


def _change(rng: random.Random, name: str) -> _Change:
    """A change by `name`, who may pass things on to somebody else."""
    operator = rng.choice(tuple(_CHANGES))
    amount = 2 if operator in ("*", "/") else rng.randint(2, 20)
    other = rng.choice([somebody for somebody in _NAMES if somebody != name])
    return _Change(operator, amount, rng.choice(_CHANGES[operator]).format(name=name, amount=amount, other=other))


_CHANGES: dict[Operator, tuple[str, ...]] = {
    "+": ("{name} finds {amount} more.", "{name} buys {amount} more.", "{name} gets {amount} from {other}."),
    "-": ("{name} loses {amount}.", "{name} gives {amount} to {other}.", "{name} sells {amount}."),
    "*": ("Then {name} doubles the number.",),
    "/": ("Then {name} gives away half of them.",),
}

_NAMES = tuple(
    name
    for line in (
        "Anna Ben Carla David Emma Felix Grace Hugo Ines Jack Karim Lena",
        "Mia Noah Olga Paul Rosa Sam Tara Umar Vera Will Yuki Zoe",
    )
    for name in line.split()
)
_THINGS = tuple(
    thing
    for line in (
        "apples balls beads books buttons cards coins cookies eggs flowers kites lemons",
        "marbles muffins nuts pears pencils pens plums rocks shells stamps stickers tickets",
    )
    for thing in line.split()
)
_CONTAINERS = ("bags", "boxes", "jars", "baskets")
