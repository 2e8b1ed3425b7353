"""What is wrong with a data set, before a run finds out: every finding with its problem and, for a file, its line.

An error is what a run could not use or would learn the wrong thing from; a warning is what a person should look at.
What only a reward can know, such as a gold query that fails, the reward says itself: a function or object with
`gold_complaint(problem)` or `gold_findings(problems)` is asked.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rlctl.data_files import Columns, Fault, Row, problem_of
from rlctl.data_filters import identity
from rlctl.rewards import RewardSet
from rlctl.types import Problem

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `where` is FILE:LINE or a problem's id; `kind` is what findings are counted by."""

    level: Level
    kind: str
    where: str
    message: str


class RewardFinding(Protocol):
    """What a reward says of a gold answer; one that `blocks` can never be earned in full."""

    @property
    def problem_id(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def blocks(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Split:
    """The problems of one split, with how messages name each: by file and line where they have one."""

    name: str
    problems: Sequence[Problem]
    place: Callable[[Problem], str]


def lint_rows(rows: Sequence[Row | Fault], *, file: str, columns: Columns) -> list[Finding]:
    """What keeps lines of a file from being problems: no row, a column that is missing on it, an empty question."""
    findings = []
    for row in rows:
        found = row if isinstance(row, Fault) else problem_of(row, prefix="", columns=columns)
        if isinstance(found, Fault):
            findings.append(
                Finding("error", _fault_kind(found.message, columns), f"{file}:{found.line}", found.message)
            )
    return findings + _repeated_ids(rows, file=file, columns=columns)


def _fault_kind(message: str, columns: Columns) -> str:
    if message.startswith("no column"):
        return "missing column"
    if message.startswith((f"{columns.question} is empty", f"{columns.question} is null")):
        return "empty question"
    if message.startswith((f"{columns.answer} is empty", f"{columns.answer} is null")):
        return "empty answer"
    return "unreadable row"


def _repeated_ids(rows: Sequence[Row | Fault], *, file: str, columns: Columns) -> list[Finding]:
    first: dict[str, int] = {}
    findings = []
    for row in rows if columns.id else ():
        name = row.values.get(columns.id or "") if isinstance(row, Row) else None
        if name is None:
            continue
        line = first.setdefault(str(name), row.line)
        if line != row.line:
            findings.append(Finding("error", "repeated id", f"{file}:{row.line}", f"id {name} is also on line {line}"))
    return findings


def lint_problems(splits: Sequence[Split], rewards: RewardSet, *, prompt: str) -> list[Finding]:
    """What is wrong with problems that can be read. `prompt` is the text that is put around each question."""
    findings: list[Finding] = []
    for split in splits:
        findings += _golds(split, rewards)
        findings += _duplicates(split, rewards)
        findings += _golds_in_questions(split, rewards)
    return [*findings, *_overlap(splits), *(_markers(prompt, splits[0].problems[0], rewards) if splits else ())]


def _golds(split: Split, rewards: RewardSet) -> Iterator[Finding]:
    """What each reward says of the gold answers; of one that it cannot use it says so once."""
    places = {problem.id: split.place(problem) for problem in split.problems}
    for reward in rewards.rewards:
        complain = reward.gold_complaint
        refused: set[str] = set()
        for problem in split.problems if complain else ():
            if complain and (complaint := complain(problem)):
                refused.add(problem.id)
                yield Finding("error", "unusable gold", places[problem.id], f"{reward.name}: {complaint}")
        look: Callable[[Sequence[Problem]], Sequence[RewardFinding]] | None
        look = getattr(reward.function, "gold_findings", None)
        usable = [problem for problem in split.problems if problem.id not in refused]
        for found in look(usable) if look else ():
            level: Level = "error" if found.blocks else "warning"
            yield Finding(level, found.kind, places[found.problem_id], f"{reward.name}: {found.message}")


def _duplicates(split: Split, rewards: RewardSet) -> Iterator[Finding]:
    """Questions that come again; an error where their answers differ, since one of them must be wrong."""
    same: dict[str, list[Problem]] = defaultdict(list)
    for problem in split.problems:
        same[identity(problem)].append(problem)
    for first, *others in same.values():
        for other in others:
            exactly = "" if other.question == first.question else ", but for letter case and spacing"
            if _gold(other, rewards) == _gold(first, rewards):
                kind = "duplicate" if not exactly else "near duplicate"
                told = f"the question of {split.place(first)} again{exactly}"
                yield Finding("warning", kind, split.place(other), told)
            else:
                told = f"the question of {split.place(first)}{exactly}, with another answer"
                yield Finding("error", "contradiction", split.place(other), told)


def _gold(problem: Problem, rewards: RewardSet) -> Hashable:
    """What the reward reads in the gold answer; its text where the reward reads nothing there."""
    answer_of = getattr(rewards.rewards[0].function, "answer", None)
    read: Hashable | None = answer_of(problem, _marked(problem.answer)) if answer_of else None
    return problem.answer.strip() if read is None else read


def _golds_in_questions(split: Split, rewards: RewardSet) -> Iterator[Finding]:
    """A question that gives its answer away in the marked form a completion is graded by."""
    answer_of = getattr(rewards.rewards[0].function, "answer", None)
    for problem in split.problems:
        marked = any(marker in problem.question for marker in _MARKERS)
        given = answer_of(problem, problem.question) if answer_of and marked else None
        if given is not None and given == _gold(problem, rewards):
            yield Finding("warning", "gold in question", split.place(problem), "the question holds its marked answer")
        elif len(_core(problem.answer)) >= _LONG_ENOUGH and _core(problem.answer) in problem.question:
            told = f"the question holds the gold answer {_core(problem.answer)[:40]!r} word for word"
            yield Finding("warning", "gold in question", split.place(problem), told)


_MARKERS = ("####", "\\boxed", "<answer>")

_LONG_ENOUGH = 12
"""Characters a gold answer must have before finding it in a question says anything: short ones occur by chance."""


def _marked(answer: str) -> str:
    return answer if any(marker in answer for marker in _MARKERS) else f"#### {answer}"


def _core(answer: str) -> str:
    return answer.rpartition("####")[2].strip()


def _overlap(splits: Sequence[Split]) -> Iterator[Finding]:
    """Evaluation questions that are trained on."""
    if len(splits) < 2:
        return
    train, evaluation = splits[0], splits[1]
    places = {identity(problem): problem for problem in train.problems}
    for problem in evaluation.problems:
        twin = places.get(identity(problem))
        if twin is not None:
            told = f"this evaluation question is trained on too: {train.place(twin)}"
            yield Finding("error", "overlap", evaluation.place(problem), told)


_ASKS = re.compile(r"<answer>|\\boxed|####")


def _markers(prompt: str, sample: Problem, rewards: RewardSet) -> Iterator[Finding]:
    """Instructions that ask for a form of answer which the reward does not read, or for none where it needs one.

    Tried and not known: the reward is given an answer in each form.
    """
    answer_of = getattr(rewards.rewards[0].function, "answer", None)
    if answer_of is None:
        return
    name = rewards.rewards[0].name
    asked = list(dict.fromkeys(_ASKS.findall(f"{prompt} {sample.question}")))
    if asked and all(answer_of(sample, _WRITTEN[marker]) is None for marker in asked):
        told = f"asks for {' or '.join(asked)}, which reward {name} does not read: every such answer scores 0"
        yield Finding("error", "prompt against reward", "data.prompt_suffix", told)
    elif not asked and answer_of(sample, "The answer is 7.") is None:
        forms = [marker for marker, written in _WRITTEN.items() if answer_of(sample, written) is not None]
        told = f"asks for no form of answer, and reward {name} reads only {' or '.join(forms) or 'marked ones'}"
        yield Finding("warning", "prompt against reward", "data.prompt_suffix", told)


_WRITTEN = {"<answer>": "<answer>7</answer>", "\\boxed": "\\boxed{7}", "####": "#### 7"}
