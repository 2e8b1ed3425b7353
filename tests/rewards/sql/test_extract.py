"""Where a query is found in a completion, and where not."""

from __future__ import annotations

import time

import pytest

from rlctl.rewards.sql.extract import ACCEPTANCES, Acceptance, extract_sql
from rlctl.settings.sql import SqlRewardSettings

THOUGHT = "<think>\nlook\n</think>\n"


@pytest.mark.parametrize(
    ("completion", "sql"),
    [
        ("```sql\nSELECT 1\n```\nno:\n```sql\nSELECT 2\n```", "SELECT 2"),
        ("```SQL\nSELECT 1\n```", "SELECT 1"),
        ("```SqLite\nSELECT 1\n```", "SELECT 1"),
        ("```\nSELECT 1\n```", "SELECT 1"),
        ("~~~sql\nSELECT 1\n~~~", "SELECT 1"),
        ("````sql\nSELECT '\n```\n'\n````", "SELECT '\n```\n'"),
        ("```sql\r\nSELECT 1\r\nFROM t\r\n```\r\n", "SELECT 1\r\nFROM t"),
        ("1. it:\n\n   ```sql\n   SELECT 1\n   FROM t\n   ```", "SELECT 1\nFROM t"),
        ("```sql\nSELECT 1\n```\n```sql\n\n```", "SELECT 1"),
        ("```sql\nSELECT 1\n```sql\nSELECT 2\n```", "SELECT 2"),
        ("```sql\nSELECT 1\n```\n```python\nrun()\n```", "SELECT 1"),
        ("<think>```sql\nSELECT 9\n```</think>\n```sql\nSELECT 1\n```", "SELECT 1"),
        ("<think>a</think>b<think>```sql\nSELECT 9\n```\n</think>\n```sql\nSELECT 1\n```", "SELECT 1"),
        ("```sql\nSELECT 1\n```\nand\n```sql\nSELECT 2", "SELECT 1"),
        ("SELECT 1", None),
        ("```sql\nSELECT 1", None),
        ("```sql SELECT 1```", None),
        ("`SELECT 1`", None),
        ("```json\n{}\n```", None),
        ("<think>```sql\nSELECT 1\n```", None),
        ("<think>```sql\nSELECT 1\n```</think> above", None),
        ("", None),
        ("I cannot.", None),
    ],
)
def test_the_last_closed_sql_fence_after_the_thinking_is_the_query(completion: str, sql: str | None) -> None:
    found = extract_sql(completion)
    assert found.sql == sql
    assert found.why if sql is None else found.form == "fence"


@pytest.mark.parametrize(
    ("completion", "correct"),
    [
        (THOUGHT + "```sql\nSELECT 1\n```", True),
        ("```sql\nSELECT 1\n```", False),
        (THOUGHT + "nothing", False),
        (THOUGHT + "</think>\n```sql\nSELECT 1\n```", False),
        ("</think><think>\n```sql\nSELECT 1\n```", False),
        ("<THINK></THINK>\n```sql\nSELECT 1\n```", False),
    ],
)
def test_the_format_is_a_query_after_thinking_once(completion: str, correct: bool) -> None:
    assert extract_sql(completion).format_correct is correct


@pytest.mark.parametrize(
    ("accept", "completion", "sql"),
    [
        ("first-fence", "```sql\nSELECT 1\n```\n```sql\nSELECT 2\n```", "SELECT 1"),
        ("unclosed-fence", "```sql\nSELECT 1", "SELECT 1"),
        ("one-line-fence", "```sql SELECT 1```", "SELECT 1"),
        ("inline-code", "It is `SELECT 1`.", "SELECT 1"),
        ("json-fence", '```json\n{"sql": "SELECT 1"}\n```', "SELECT 1"),
        ("missing-think-close", "<think>\n```sql\nSELECT 1\n```", "SELECT 1"),
        ("bare-select", "Here:\n\nSELECT 1\nFROM t\n\nDone.", "SELECT 1\nFROM t"),
    ],
)
def test_each_wider_rule_is_opted_into_by_name(accept: Acceptance, completion: str, sql: str) -> None:
    assert extract_sql(completion, accept=[accept]).sql == sql
    assert extract_sql(completion).sql != sql


def test_the_settings_know_the_names_of_the_wider_rules() -> None:
    assert SqlRewardSettings(accept=ACCEPTANCES).accept == ACCEPTANCES


@pytest.mark.parametrize(
    "piece", ["`", "```", "```sql ", " ", "\n", "```sql\n", "<think>", "</think>", "~~~", "`a", "``` \t", "{", "\r\n"]
)
def test_a_megabyte_of_anything_is_read_in_linear_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    start = time.process_time()
    for completion in (text, "```sql\n" + text, "```sql" + text + "`", "```json\n" + text + "\n```"):
        extract_sql(completion, accept=ACCEPTANCES)
    assert time.process_time() - start < 5
