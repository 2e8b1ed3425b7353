"""From problems as read to problems to train on: gold queries executed and judged, prompts built.

Problems without a database pass through. A generated set has sound golds by construction, so only what is read from a
file or the hub is executed.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlctl.errors import DataError
from rlctl.rewards import RewardSet
from rlctl.rewards.sql.lint import Finding, summary
from rlctl.settings import Settings
from rlctl.sources import LazyProblems
from rlctl.text_to_sql.prompt import PromptBuilder
from rlctl.tokenizer import ChatTokenizer
from rlctl.types import Problem

_COMPARISONS = {
    "bird": "results are compared as sets of rows, as the BIRD benchmark does",
    "strict": "results are compared as multisets of rows, in order where the gold query is ordered",
}

SHOWN = 3
"""Findings told one by one; `rlctl data lint` tells them all."""


def prompt_builder(settings: Settings, tokenizer: ChatTokenizer) -> PromptBuilder:
    """What puts a run's schemas into its prompts, measured by its tokenizer and chat template."""
    return PromptBuilder(
        settings.data.sql,
        budget=settings.data.max_prompt_length,
        measure=lambda text: len(tokenizer.encode(Problem("", text, ""))),
    )


class SqlProblems:
    """Makes the problems of a run ready, and remembers what to tell of it."""

    def __init__(self, settings: Settings, rewards: RewardSet, tokenizer: ChatTokenizer) -> None:
        self.prompts = prompt_builder(settings, tokenizer)
        self.rewards = [reward for reward in rewards.rewards if reward.gold_findings]
        self.comparison = settings.reward.sql.comparison
        self.leaves_out = settings.reward.sql.leave_out_bad_golds
        self.findings: list[Finding] = []
        self.executed = 0

    def ready(self, problems: Sequence[Problem]) -> Sequence[Problem]:
        """Raises DataError when a database cannot be read, or no problem with a sound gold is left."""
        return self.prompts(self._sound(problems))

    def notes(self) -> list[str]:
        how = f"reward sql: {_COMPARISONS[self.comparison]} (reward.sql.comparison = {self.comparison})"
        lines = [how if self.rewards else "", self.prompts.note(), summary(self.executed, self.findings)]
        blocking = [finding for finding in self.findings if finding.blocks]
        if blocking and self.leaves_out:
            lines.append(f"{len(blocking)} of these problems are left out (reward.sql.leave_out_bad_golds)")
        lines += [f"{finding.problem_id}: {finding.message}" for finding in blocking[:SHOWN]]
        return [line for line in lines if line]

    def _sound(self, problems: Sequence[Problem]) -> Sequence[Problem]:
        if isinstance(problems, LazyProblems) or not problems or not self.rewards:
            return problems
        found: list[Finding] = []
        for reward in self.rewards:
            assert reward.gold_findings is not None
            found += reward.gold_findings(problems)
        self.findings += found
        self.executed += len(problems)
        blocked = {finding.problem_id for finding in found if finding.blocks}
        kept = [problem for problem in problems if problem.id not in blocked]
        if not kept:
            first = next(finding for finding in found if finding.blocks)
            raise DataError(
                f"none of {len(problems)} gold queries gives a result in time; {first.problem_id}: {first.message}",
                hint="`rlctl data lint` lists them all; reward.sql.timeout_s is what a query may take.",
            )
        return kept if self.leaves_out else problems
