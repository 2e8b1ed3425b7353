"""The 410 labelled responses of the shared cases: query, format, execution and both comparisons, row by row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlctl.rewards.sql.extract import Acceptance, extract_sql
from rlctl.rewards.sql.reward import Sql
from rlctl.rewards.sql.statement import is_ordered
from tests.rewards.sql.helpers import fingerprint, problem, reward

CONVENTIONS: dict[str, Acceptance] = {
    "take the first fence": "first-fence",
    "accept an unclosed": "unclosed-fence",
    "accept a fence whose SQL is on the line": "one-line-fence",
    "accept inline code": "inline-code",
    'accept {"sql": ...} in a json fence': "json-fence",
    "read the fence anyway": "missing-think-close",
    "accept a bare SELECT": "bare-select",
}


@pytest.fixture(scope="module")
def cases(shared: Path) -> list[dict[str, Any]]:
    lines = (shared / "cases/text2sql/responses.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def verdict(rule: Sql, case: dict[str, Any], shared: Path) -> tuple[bool, bool]:
    """(is the result the gold's, does it execute)."""
    result = rule(problem(shared / "cases/text2sql" / case["db"], case["gold"]), case["response"])
    return bool(result.extra["execution_accuracy"]), bool(result.extra["execution_success"])


def disagreements(cases: Sequence[dict[str, Any]], shared: Path, *, comparison: str, label: str) -> list[object]:
    rule = reward(comparison=comparison, timeout_s=0.5)
    wrong: list[object] = []
    for case in cases:
        same, executes = verdict(rule, case, shared)
        if case[label] is not None and same is not case[label]:
            wrong.append((case["id"], case["kind"], same))
        if case["executes"] is not None and executes is not case["executes"]:
            wrong.append((case["id"], case["kind"], executes))
    return wrong


def test_every_query_is_extracted_as_labelled(cases: list[dict[str, Any]]) -> None:
    assert len(cases) == 410
    found = [extract_sql(case["response"]) for case in cases]
    assert [one.sql for one in found] == [case["sql"] for case in cases]
    assert [one.format_correct for one in found] == [case["format_ok"] for case in cases]
    assert [is_ordered(case["gold"]) for case in cases] == [case["gold_ordered"] for case in cases]


@pytest.mark.slow
def test_every_verdict_agrees_and_no_database_is_touched(cases: list[dict[str, Any]], shared: Path) -> None:
    before = fingerprint(shared / "cases/text2sql/db")
    assert disagreements(cases, shared, comparison="bird", label="expected_set") == []
    assert disagreements(cases, shared, comparison="strict", label="expected_multiset") == []
    assert fingerprint(shared / "cases/text2sql/db") == before
    assert not list(Path.cwd().glob("rlctl_stray*"))


def test_what_a_convention_accepts_is_graded_as_it_says(cases: list[dict[str, Any]], shared: Path) -> None:
    chosen = [case for case in cases if case.get("convention")]
    assert len(chosen) == 40
    for case in chosen:
        convention = case["convention"]
        accept = next(name for start, name in CONVENTIONS.items() if convention["rule"].startswith(start))
        for comparison, label in (("bird", "expected_set"), ("strict", "expected_multiset")):
            rule = reward(comparison=comparison, accept=[accept], timeout_s=0.5)
            assert verdict(rule, case, shared) == (convention[label], convention["executes"]), case["id"]


def test_gold_queries_are_undecided_only_where_ties_reach_the_result(cases: list[dict[str, Any]], shared: Path) -> None:
    """The label says that sort keys tie somewhere; four golds tie only beyond their LIMIT, which decides nothing."""
    beyond_limit = {"sql-0109", "sql-0859", "sql-0931", "sql-0684"}
    rule = reward()
    for case in {case["gold"]: case for case in cases}.values():
        gold = rule.gold(problem(shared / "cases/text2sql" / case["db"], case["gold"]))
        tied = gold.undefined or (gold.blocks is not None and max(gold.blocks, default=1) > 1)
        assert tied is (case["gold_order_ties"] and case["id"] not in beyond_limit), case["id"]
