"""The prompt of a text-to-SQL problem: schema, question with its evidence, what to answer and in which form.

A schema that does not fit the token budget loses, in this order and no more than it must: sample rows (10, 5, 3, 1, 0),
example values (10, 3, 0), descriptions. What was cut is counted (`Cuts`) and told before the run. Tables and columns
are never cut: a prompt that is too long without all of the rest is left out like any other.
Order of the parts: the BIRD recipe of Snowflake's RL examples for verl; the words are our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rlctl.sources import LazyProblems
from rlctl.text_to_sql.schema import Detail, schema_text
from rlctl.types import Problem

if TYPE_CHECKING:  # settings load pydantic, and only their values are needed here
    from rlctl.settings.sql_prompt import SqlPromptSettings

Measure = Callable[[str], int]
"""Tokens of a prompt whose question is that text, chat template included."""

ROWS_STEPS = (5, 3, 1, 0)
EXAMPLES_STEPS = (3, 0)

INSTRUCTIONS = """Write one SQLite query that answers the question.
- Return the columns that are asked for, in the order of the question, and no others.
- Return every row that answers it, and none that does not.
- Think first: which tables and columns are needed, how they join, which rows qualify.

Put your thinking between <think> and </think>, then the answer between <answer> and </answer> as one fenced block:
<think>
how you get there
</think>
<answer>
```sql
the query
```
</answer>"""


@dataclass
class Cuts:
    """What was cut from schemas so far, in prompts: each prompt counts once under each thing it lost."""

    prompts: int = 0
    sample_rows: int = 0
    example_values: int = 0
    descriptions: int = 0
    databases: set[str] = field(default_factory=set)

    def line(self, *, total: int, budget: int) -> str:
        """One line for a person; empty when nothing was cut."""
        if not self.prompts:
            return ""
        lost = (("sample rows", self.sample_rows), ("example values", self.example_values))
        told = ", ".join(
            f"{count} lost {what}" for what, count in (*lost, ("descriptions", self.descriptions)) if count
        )
        return (
            f"schemas of {self.prompts} of {total} prompts ({len(self.databases)} databases) were cut "
            f"to fit {budget} tokens: {told}"
        )


class PromptBuilder:
    """Prompts for one budget (tokens of a prompt), with the sizes of the schemas measured so far."""

    def __init__(self, settings: SqlPromptSettings, *, budget: int, measure: Measure) -> None:
        self.settings, self.measure, self.cuts = settings, measure, Cuts()
        self.budget = min(budget, settings.max_tokens or budget)
        self.tokens: dict[tuple[str, Detail], int] = {}
        self.made = 0

    def __call__(self, problems: Sequence[Problem]) -> Sequence[Problem]:
        """Problems whose questions are whole prompts: those with a database get its schema, others stay as they are.

        Problems made on the spot get theirs as they come. Raises DataError when a database cannot be read.
        """
        if isinstance(problems, LazyProblems):
            return LazyProblems(lambda index: self.prompted(problems[index]), size=len(problems))
        return [self.prompted(problem) for problem in problems]

    def note(self) -> str:
        """What was cut from the prompts made so far, in one line; empty when nothing was."""
        return self.cuts.line(total=self.made, budget=self.budget)

    def prompted(self, problem: Problem) -> Problem:
        database = problem.extra.get("database")
        if database is None or self.settings.layout == "none":
            return problem
        self.made += 1
        return replace(problem, question=self._fitting(problem, str(database)))

    def _fitting(self, problem: Problem, database: str) -> str:
        whole = self.settings.detail()
        around = self.measure(prompt_text(problem, "", compact=whole.compact))
        detail = whole
        for detail in _poorer(whole):
            if around + self._size(database, detail) <= self.budget:
                break
        self._count(database, whole, detail)
        return prompt_text(problem, schema_text(database, detail), compact=whole.compact)

    def _size(self, database: str, detail: Detail) -> int:
        """Tokens of a schema, a little too many: the chat template is counted along."""
        key = (database, detail)
        if key not in self.tokens:
            self.tokens[key] = self.measure(schema_text(database, detail))
        return self.tokens[key]

    def _count(self, database: str, whole: Detail, used: Detail) -> None:
        if used == whole:
            return
        self.cuts.prompts += 1
        self.cuts.databases.add(database)
        self.cuts.sample_rows += used.sample_rows < whole.sample_rows
        self.cuts.example_values += used.example_values < whole.example_values
        self.cuts.descriptions += used.descriptions < whole.descriptions


def _poorer(detail: Detail) -> Iterator[Detail]:
    """The detail asked for, then ever less of it, in the order of the module's docstring."""
    yield detail
    for rows in ROWS_STEPS:
        if rows < detail.sample_rows:
            detail = replace(detail, sample_rows=rows)
            yield detail
    for examples in EXAMPLES_STEPS:
        if examples < detail.example_values:
            detail = replace(detail, example_values=examples)
            yield detail
    if detail.descriptions:
        yield replace(detail, descriptions=False)


def prompt_text(problem: Problem, schema: str, *, compact: bool) -> str:
    """The user's message of a problem with its schema."""
    evidence = str(problem.extra.get("evidence") or "").strip()
    if compact:
        return "\n".join(filter(None, (schema, problem.question, evidence)))
    question = f"{problem.question}\n\nEvidence:\n{evidence}" if evidence else problem.question
    return (
        f"Database engine: SQLite\n\nSchema:\n{schema}\n\n"
        "The schema above lists every table with its columns, keys and, in comments, what they mean and hold.\n\n"
        f"Question:\n{question}\n\n{INSTRUCTIONS}"
    )
