"""The data of some settings, read for `rlctl data lint` and `rlctl data stats`, and their reports.

Unlike a run, lint reads on where a row is faulty: it reports all of them, and checks the rest.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from rlctl import data, sources
from rlctl.data_files import Fault, Row, problem_of, read_rows
from rlctl.data_filters import row_filter
from rlctl.data_lint import Finding, Split, lint_problems, lint_rows
from rlctl.data_stats import SplitStats, stats_of
from rlctl.environments.grading import with_own_graders
from rlctl.environments.setting_up import player_of
from rlctl.errors import DataError
from rlctl.prepare import load_policy
from rlctl.rewards.loading import rewards_of
from rlctl.settings import Settings
from rlctl.settings.data import MixedSourceSettings
from rlctl.text_to_sql.loading import prompt_builder
from rlctl.types import Problem

Style = Literal["text", "json"]


def find(settings: Settings, *, at_most: int) -> tuple[list[Finding], int]:
    """(all that is wrong with the settings' data, the number of problems looked at).

    Raises DataError when there is nothing to look at.
    """
    rewards, _ = with_own_graders(rewards_of(settings.reward), settings)
    findings: list[Finding] = []
    splits = []
    for name, split in (("train", "train"), ("eval", "eval")):
        problems: list[Problem] = []
        places: dict[str, str] = {}
        for table in settings.data.tables():
            path = table.path if split == "train" else table.eval_path
            if path:
                read, own, found = _read_all(Path(path), table)
                findings += found
                problems += read
                places |= own
            elif not table.path:
                problems += _of_source(settings, table, split, at_most=at_most)
        splits.append(Split(name, problems, _place(places)))
    if not findings and not any(split.problems for split in splits):
        raise DataError("there is not one problem to look at.", hint="loosen data.where and data.match.")
    prompt = f"{settings.data.system_prompt or ''} {settings.data.prompt_suffix}"
    with closing(rewards):
        findings += lint_problems([split for split in splits if split.problems], rewards, prompt=prompt)
    return findings, sum(len(split.problems) for split in splits)


def _place(places: dict[str, str]) -> Callable[[Problem], str]:
    return lambda problem: places.get(problem.id, problem.id)


def _read_all(path: Path, table: MixedSourceSettings) -> tuple[list[Problem], dict[str, str], list[Finding]]:
    """(the problems of a file, FILE:LINE of each id, what is wrong with its other lines)."""
    columns, keeps = sources.columns_of(table), row_filter(table.where, table.match)
    wanted: list[Row | Fault] = []
    rows = read_rows(path)
    if not rows:
        raise DataError(f"{path} has no rows.")
    for row in rows:
        verdict = keeps(row) if keeps and isinstance(row, Row) else True
        if verdict is not False:
            wanted.append(verdict if isinstance(verdict, Fault) else row)
    problems, places = [], {}
    for row in wanted:
        problem = None if isinstance(row, Fault) else problem_of(row, prefix=str(path), columns=columns)
        if isinstance(problem, Problem) and problem.id not in places:
            problems.append(problem)
            places[problem.id] = f"{path}:{row.line}"
    return problems, places, lint_rows(wanted, file=str(path), columns=columns)


def _of_source(settings: Settings, table: MixedSourceSettings, split: str, *, at_most: int) -> list[Problem]:
    spec = settings.data.model_copy(update={"sources": (table,)})
    problems = data.load_problems(spec, split="train" if split == "train" else "eval", seed=settings.seed)
    return list(problems[:at_most] if isinstance(problems, data.LazyProblems) else problems)


def measure(settings: Settings, *, at_most: int) -> list[SplitStats]:
    """Statistics of the training and the evaluation problems, as a run would have them before its length filter."""
    policy = load_policy(settings)
    tokenizer = policy.tokenizer
    # For the tools of an environment, which are part of every prompt.
    if (player := player_of(settings, tokenizer, end_token_ids=policy.end_token_ids)) is not None:
        player.environment.close()
    prompts = prompt_builder(settings, tokenizer)
    found = []
    for split in ("train", "eval"):
        problems = data.load_problems(settings.data, split="train" if split == "train" else "eval", seed=settings.seed)
        if not len(problems):
            continue
        some = prompts(problems[:at_most] if isinstance(problems, data.LazyProblems) else problems)
        limit = settings.data.max_prompt_length
        found.append(stats_of(split, some, num_problems=len(problems), tokenizer=tokenizer, limit=limit))
    return found


def render_findings(findings: Sequence[Finding], *, num_problems: int, style: Style, shown: int) -> str:
    counts = Counter((one.level, one.kind) for one in findings)
    if style == "json":
        record = {
            "num_problems": num_problems,
            "errors": sum(one.level == "error" for one in findings),
            "warnings": sum(one.level == "warning" for one in findings),
            "kinds": {kind: count for (_, kind), count in counts.items()},
            "findings": [asdict(one) for one in findings],
        }
        return json.dumps(record, indent=2, ensure_ascii=False)
    lines = []
    for (level, kind), count in sorted(counts.items()):
        lines.append(f"{level}: {kind}: {count:,}")
        own = [one for one in findings if (one.level, one.kind) == (level, kind)]
        lines += [f"  {one.where}: {one.message}" for one in own[:shown]]
        lines += [f"  and {count - shown:,} more; --format json lists all"] if count > shown else []
    total = Counter(one.level for one in findings)
    return "\n".join([*lines, f"{num_problems:,} problems: {total['error']:,} errors, {total['warning']:,} warnings"])


def render_stats(found: Sequence[SplitStats], *, style: Style) -> str:
    if style == "json":
        return json.dumps([one.record() for one in found], indent=2, ensure_ascii=False)
    return "\n".join(line for one in found for line in one.lines())
