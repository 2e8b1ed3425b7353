"""What a policy may write at worst: after each the database is byte-identical, the pool lives, no file is left.

Scores are of answers without thinking, so 0.1 means "executes", and 0.0 that it did not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rlctl.rewards.sql.reward import Sql
from tests.rewards.sql.helpers import database, fenced, fingerprint, problem, reward, score

LIMIT_S = 0.5
ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r"
MANY = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 1000000)"

REFUSED = {
    "delete": "DELETE FROM t",
    "delete returning": "DELETE FROM t RETURNING a",
    "update": "UPDATE t SET a = 0",
    "insert": "INSERT INTO t VALUES (9, 'x')",
    "replace": "REPLACE INTO t VALUES (9, 'x')",
    "cte delete": "WITH c AS (SELECT 1) DELETE FROM t",
    "upsert": "INSERT INTO t VALUES (1, 'x') ON CONFLICT DO NOTHING",
    "drop": "DROP TABLE t",
    "alter": "ALTER TABLE t RENAME TO u",
    "create": "CREATE TABLE z(a)",
    "create as": "CREATE TABLE z AS SELECT * FROM t",
    "temp table": "CREATE TEMP TABLE z(a)",
    "temp view": "CREATE TEMP VIEW z AS SELECT 1",
    "temp trigger": "CREATE TEMP TRIGGER z AFTER INSERT ON t BEGIN SELECT 1; END",
    "index": "CREATE INDEX i ON t(a)",
    "reindex": "REINDEX",
    "analyze": "ANALYZE",
    "vacuum": "VACUUM",
    "vacuum into": "VACUUM INTO '{scratch}'",
    "attach": "ATTACH DATABASE '{scratch}' AS e",
    "attach memory": "ATTACH ':memory:' AS e",
    "attach uri": "ATTACH 'file:{scratch}?mode=rwc' AS e",
    "detach": "DETACH main",
    "pragma query_only": "PRAGMA query_only = 0",
    "pragma writable_schema": "PRAGMA writable_schema = 1",
    "pragma user_version": "PRAGMA user_version(7)",
    "pragma journal_mode": "PRAGMA journal_mode = WAL",
    "pragma temp_store_directory": "PRAGMA temp_store_directory = '{folder}'",
    "pragma hard_heap_limit": "PRAGMA hard_heap_limit = 0",
    "pragma function": "SELECT * FROM pragma_user_version",
    "write schema": "UPDATE sqlite_master SET sql = 'x'",
    "begin": "BEGIN IMMEDIATE",
    "savepoint": "SAVEPOINT s",
    "two statements": "SELECT 1; DROP TABLE t",
    "two selects": "SELECT a FROM t; SELECT a FROM t",
    "load_extension": "SELECT load_extension('{scratch}')",
    "writefile": "SELECT writefile('{scratch}', 'x')",
    "readfile": "SELECT readfile('/etc/passwd')",
    "edit": "SELECT edit('x', 'touch {scratch}')",
    "fts create": "CREATE VIRTUAL TABLE z USING fts5(a)",
    "fts3 tokenizer": "SELECT fts3_tokenizer('simple')",
    "fts3 tokenizer blob": "SELECT fts3_tokenizer('x', x'4141414141414141')",
    "fts command": "INSERT INTO words(words) VALUES ('optimize')",
    "fts shadow": "DELETE FROM words_data",
    "rtree create": "CREATE VIRTUAL TABLE z USING rtree(i, a, b)",
    "csv table": "CREATE VIRTUAL TABLE temp.z USING csv(filename='/etc/passwd')",
    "dbpage": "SELECT * FROM sqlite_dbpage",
    "zipfile": "SELECT * FROM zipfile('{scratch}')",
    "fsdir": "SELECT * FROM fsdir('/')",
    "dot command": ".shell touch {scratch}",
    "no statement": "-- nothing",
    "semicolons": ";;;",
    "NUL": "SELECT 1\x00; DROP TABLE t",
    "half a surrogate": "SELECT '\ud800'",
    "deep parentheses": "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
    "deep unary": "SELECT " + "-" * 3 + "~" * 50_000 + "1",
    "deep concatenation": "SELECT " + "||".join(["'a'"] * 20_000),
    "deep sub-queries": "SELECT * FROM " + "(SELECT * FROM " * 5_000 + "t" + ")" * 5_000,
    "many unions": " UNION ALL ".join(["SELECT 1"] * 5_000),
    "many joins": "SELECT * FROM " + ", ".join(["t"] * 70),
    "huge text": "SELECT '" + "x" * 1_500_000 + "'",
    "huge list": "SELECT 1 IN (" + ",".join(map(str, range(400_000))) + ")",
    "zeroblob": "SELECT zeroblob(2000000000)",
    "hex of zeroblob": "SELECT length(hex(zeroblob(1000000000)))",
    "wide printf": "SELECT length(printf('%.*c', 2000000000, 'x'))",
    "randomblob": "SELECT length(hex(randomblob(1000000000)))",
    "replace growth": "SELECT length(replace(hex(zeroblob(2000000)), '0', hex(zeroblob(2000000))))",
    "group_concat growth": f"{MANY} SELECT length(group_concat(hex(zeroblob(1000)), '')) FROM r",
    "json growth": f"{MANY} SELECT length(json_group_array(hex(zeroblob(1000)))) FROM r",
    "sort growth": f"{MANY} SELECT n, hex(zeroblob(5000)) AS h FROM r ORDER BY h, n DESC",
    "distinct growth": f"{MANY} SELECT DISTINCT n || hex(zeroblob(5000)) FROM r",
    "materialised growth": f"{MANY}, c AS MATERIALIZED (SELECT hex(zeroblob(5000)) AS h FROM r) SELECT max(h) FROM c",
    "ten gigabytes": f"{MANY} SELECT hex(zeroblob(5000)) FROM r",
    "endless rows": "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n FROM r",
    "endless count": ENDLESS,
    "endless in where": f"SELECT a FROM t WHERE ({ENDLESS}) > 0",
    "cross join": "SELECT count(*) FROM " + ", ".join(f"t AS t{i}, words AS w{i}" for i in range(20)),
    "like": "SELECT hex(zeroblob(8000000)) LIKE '%' || hex(zeroblob(4000)) || '1%'",
    "glob": "SELECT hex(zeroblob(8000000)) GLOB '*' || hex(zeroblob(4000)) || '1*'",
    "instr": f"{MANY} SELECT sum(instr(hex(zeroblob(2000000)), hex(zeroblob(900000)) || '1')) FROM r",
}
"""Name -> a statement that must not earn even the score of one that executes."""

HARMLESS = {
    "trailing semicolon": "SELECT 1;",
    "trailing semicolons": "SELECT 1;; ;\n",
    "trailing comment": "SELECT 1; -- done",
    "semicolon in text": "SELECT ';'",
    "schema": "SELECT name FROM sqlite_master",
    "window": "SELECT a, sum(a) OVER (ORDER BY a), row_number() OVER () FROM t",
    "recursion": "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 9) SELECT sum(n) FROM r",
    "full text": "SELECT a FROM words WHERE words MATCH 'green'",
    "box": "SELECT i FROM box WHERE low > 0.5",
    "json": "SELECT value FROM json_each('[1, 2]')",
    "dates": "SELECT strftime('%Y', '2024-02-29'), julianday('now') > 0, CURRENT_DATE > ''",
    "case": "SELECT CASE WHEN b LIKE 'Y%' THEN 1 ELSE iif(a > 1, 2, 3) END FROM t",
    "aggregates": "SELECT count(*), avg(a), total(a), group_concat(b, '-'), max(b), min(a, 2) FROM t",
    "set operations": "SELECT a FROM t EXCEPT SELECT 1 UNION SELECT 2 INTERSECT SELECT 2",
    "casts": "SELECT CAST(a AS REAL) / 3, round(a / 2.0, 1), a || '', substr(b, 1, 1), upper(b) FROM t",
    "explain": "EXPLAIN QUERY PLAN SELECT * FROM t",
    "values": "VALUES (1), (2)",
}


@pytest.fixture(scope="module")
def rule() -> Iterator[Sql]:
    rule = reward(timeout_s=LIMIT_S, memory_mb=256, workers=4)
    yield rule
    rule.golds.pool.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    database(
        tmp_path / "it's a (db)?#%41.sqlite",
        "CREATE TABLE t(a INTEGER, b TEXT)",
        "INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, NULL)",
        "CREATE VIRTUAL TABLE words USING fts5(a)",
        "INSERT INTO words VALUES ('a green apple'), ('a red one')",
        "CREATE VIRTUAL TABLE box USING rtree(i, low, high)",
        "INSERT INTO box VALUES (1, 0, 1), (2, 1, 2)",
    )
    return tmp_path


def graded(rule: Sql, folder: Path, sql: str) -> tuple[float, str, float]:
    """(score, note, seconds) of a query whose gold is an impossible row."""
    path = next(folder.glob("*.sqlite"))
    result_of = problem(path, "SELECT 'what no query says'")
    rule.gold(result_of)
    start = time.monotonic()
    result = rule(result_of, fenced(sql))
    return result.score, result.note, time.monotonic() - start


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_statement_earns_nothing_and_harms_nothing(rule: Sql, folder: Path, name: str) -> None:
    before = fingerprint(folder)
    sql = REFUSED[name].replace("{scratch}", str(folder / "stray")).replace("{folder}", str(folder))
    earned, note, seconds = graded(rule, folder, sql)
    assert earned == 0.0, note
    assert seconds < 30  # and not for ever
    assert fingerprint(folder) == before
    assert graded(rule, folder, "SELECT 1")[0] == 0.1


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_query_executes(rule: Sql, folder: Path, name: str) -> None:
    before = fingerprint(folder)
    earned, note, _ = graded(rule, folder, HARMLESS[name])
    assert earned == 0.1, note
    assert fingerprint(folder) == before
    assert score(rule, next(folder.glob("*.sqlite")), gold=HARMLESS[name], found=HARMLESS[name]) == 1.0


@pytest.mark.parametrize("name", ["delete", "attach", "zeroblob", "two statements"])
def test_a_hostile_gold_is_a_failure_and_no_score(rule: Sql, folder: Path, name: str) -> None:
    before = fingerprint(folder)
    gold = REFUSED[name].replace("{scratch}", str(folder / "stray"))
    path = next(folder.glob("*.sqlite"))
    with pytest.raises(Exception, match="the gold query has no result"):
        rule(problem(path, gold), fenced("SELECT 1"))
    assert fingerprint(folder) == before


def test_late_queries_end_side_by_side_and_leave_nothing_running(rule: Sql, folder: Path) -> None:
    eager = reward(timeout_s=LIMIT_S, memory_mb=256, workers=8)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: graded(eager, folder, "SELECT 1"), range(16)))
        *_, alone = graded(eager, folder, ENDLESS)
        start = time.monotonic()
        results = list(threads.map(lambda _: graded(eager, folder, ENDLESS), range(8)))
    took = time.monotonic() - start
    assert all(earned == 0.0 and note.startswith("timeout") for earned, note, _ in results)
    # One after the other they would take eight times as long as one.
    assert took < 4 * alone
    time.sleep(0.2)
    before = cpu_seconds(eager.golds.pool.process_ids)
    time.sleep(0.3)
    assert cpu_seconds(eager.golds.pool.process_ids) - before < 0.1
    eager.golds.pool.close()


def cpu_seconds(processes: list[int]) -> float:
    """CPU time that these processes have used, from /proc (fields 14 and 15 of stat)."""
    total = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def test_text_that_is_not_utf8_equals_itself(rule: Sql, tmp_path: Path) -> None:
    path = database(
        tmp_path / "u.sqlite",
        "CREATE TABLE t(s TEXT)",
        "INSERT INTO t VALUES (CAST(X'ff41' AS TEXT)), (CAST(X'fe41' AS TEXT))",
    )
    one, other = ("SELECT s FROM t WHERE rowid = 1", "SELECT s FROM t WHERE rowid = 2")
    assert score(rule, path, gold=one, found=one) == 1.0
    assert score(rule, path, gold=one, found=other) == 0.1


def test_prediction_and_gold_may_change_places(rule: Sql, folder: Path) -> None:
    path = next(folder.glob("*.sqlite"))
    pairs: list[tuple[str, str, Any]] = [
        ("SELECT a FROM t", "SELECT a FROM t ORDER BY a DESC", 1.0),
        ("SELECT a FROM t", "SELECT a FROM t UNION ALL SELECT a FROM t", 1.0),
        ("SELECT a, b FROM t", "SELECT b, a FROM t", 0.1),
    ]
    for one, other, expected in pairs:
        assert score(rule, path, gold=one, found=other) == score(rule, path, gold=other, found=one) == expected
