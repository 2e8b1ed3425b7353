"""Problems whose gold query cannot be relied on: it fails, is slow, gives nothing, or gives what no order decides.

    reward = load_reward("sql", options=settings.reward.sql.model_dump()).function
    for finding in reward.gold_findings(problems): ...

Results are those of `gold.py`, so a run that follows finds them in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from rlctl.rewards.sql.gold import Gold
from rlctl.types import Problem

Kind = Literal["fails", "over limit", "order undefined", "no rows"]

BLOCKING: frozenset[Kind] = frozenset({"fails", "over limit"})
"""A completion that repeats such a gold query gets no full score: what they cost is the score's ceiling."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem's gold query, what is wrong with it, and a sentence that says so with the figures."""

    problem_id: str
    kind: Kind
    message: str

    @property
    def blocks(self) -> bool:
        return self.kind in BLOCKING


def find_bad_golds(
    problems: Sequence[Problem], *, gold: Callable[[Problem], Gold], timeout_s: float, workers: int
) -> list[Finding]:
    """All findings, in the problems' order; gold queries run `workers` at a time."""
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="rlctl-gold") as threads:
        return [
            finding for found in threads.map(lambda p: _findings(p, gold, timeout_s), problems) for finding in found
        ]


def score_ceiling(num_problems: int, findings: Iterable[Finding]) -> float:
    """The best mean of full scores that perfect completions could get: 0..1."""
    blocked = {finding.problem_id for finding in findings if finding.blocks}
    return (num_problems - len(blocked)) / num_problems if num_problems else 1.0


def summary(num_problems: int, findings: Sequence[Finding]) -> str:
    """One line for a person; empty when nothing was found."""
    if not findings:
        return ""
    counts = {kind: sum(finding.kind == kind for finding in findings) for kind in _WORDS}
    told = ", ".join(f"{count} {_WORDS[kind]}" for kind, count in counts.items() if count)
    reachable = round(score_ceiling(num_problems, findings) * num_problems)
    return f"gold queries of {num_problems}: {told}; score ceiling {reachable}/{num_problems}"


_WORDS: dict[Kind, str] = {
    "fails": "fail",
    "over limit": "are over the limit",
    "order undefined": "depend on an order they do not state",
    "no rows": "give no rows",
}


def _findings(problem: Problem, gold: Callable[[Problem], Gold], timeout_s: float) -> list[Finding]:
    try:
        result = gold(problem)
    except (OSError, KeyError) as error:
        return [Finding(problem.id, "fails", f"gold query cannot run: {error}")]
    if result.kind:
        return [Finding(problem.id, "fails", f"gold query fails ({result.kind}): {result.message}")]
    found: list[Finding] = []
    if result.seconds > timeout_s:
        seconds = f"{result.seconds:.1f} s where a completion's may take {timeout_s:g} s"
        found.append(Finding(problem.id, "over limit", f"gold over limit: its query takes {seconds}"))
    if result.undefined:
        found.append(
            Finding(problem.id, "order undefined", "its query depends on row order: tied rows decide what it gives")
        )
    if not result.num_rows:
        found.append(Finding(problem.id, "no rows", "its query gives no rows, as any empty result does"))
    return found
