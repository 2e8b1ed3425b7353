"""Gold results: executed once, kept on disk, found again, and not fooled by what is in the folder."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlctl.rewards.sql import gold as gold_module
from rlctl.rewards.sql.gold import GoldResults, content_hash
from rlctl.rewards.sql.lint import score_ceiling, summary
from rlctl.rewards.sql.pool import Limits, Pool
from tests.rewards.sql.helpers import database, problem, reward

SLOW = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 3000000) SELECT count(*) FROM r"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return database(
        tmp_path / "d.sqlite",
        "CREATE TABLE t(a, b)",
        "INSERT INTO t VALUES (1, 'x'), (2, 'x'), (3, 'y')",
    )


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(limits())
    yield pool
    pool.close()


def limits() -> Limits:
    return Limits(workers=2, timeout_s=5, memory_mb=256, max_rows=1000, max_result_mb=8)


def golds(pool: Pool, tmp_path: Path) -> GoldResults:
    """With an empty memory, over the folder on disk."""
    return GoldResults(pool, timeout_s=20, folder=tmp_path / "cache")


def files(tmp_path: Path) -> list[Path]:
    return [one for one in (tmp_path / "cache").rglob("*") if one.is_file()]


def test_a_result_is_taken_from_disk(pool: Pool, path: Path, tmp_path: Path) -> None:
    first = golds(pool, tmp_path).get(str(path), "SELECT a FROM t")
    pool.ask = None  # type: ignore[assignment]  # nothing can be executed any more
    assert golds(pool, tmp_path).get(str(path), "SELECT a FROM t") == first
    assert first.rows == "[[1],[2],[3]]"
    assert len(files(tmp_path)) == 1


def test_a_copy_of_the_database_shares_results_and_a_changed_one_does_not(
    pool: Pool, path: Path, tmp_path: Path
) -> None:
    golds(pool, tmp_path).get(str(path), "SELECT a FROM t")
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(path.read_bytes())
    golds(pool, tmp_path).get(str(copy), "SELECT a FROM t")
    assert len(files(tmp_path)) == 1
    database(copy, "DELETE FROM t WHERE a = 2")
    assert golds(pool, tmp_path).get(str(copy), "SELECT a FROM t").rows == "[[1],[3]]"
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"[1]", b"[7]"),
        lambda data: b"\xff\x00" + data,
        lambda data: b"{}\n{}\n",
    ],
)
def test_a_damaged_file_is_made_again(pool: Pool, path: Path, tmp_path: Path, damage: object) -> None:
    golds(pool, tmp_path).get(str(path), "SELECT a FROM t")
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))  # type: ignore[operator]
    assert golds(pool, tmp_path).get(str(path), "SELECT a FROM t").rows == "[[1],[2],[3]]"
    assert golds(pool, tmp_path)._read(file.stem) is not None
    assert len(files(tmp_path)) == 1


def write_and_read(folder: str, database_path: str, number: int) -> str:
    pool = Pool(limits())
    try:
        known = GoldResults(pool, timeout_s=20, folder=Path(folder))
        return "".join(known.get(database_path, f"SELECT a + {n} FROM t").rows for n in range(10))
    finally:
        pool.close()


def test_many_processes_may_fill_one_folder(path: Path, tmp_path: Path) -> None:
    expected = "".join(f"[[{1 + n}],[{2 + n}],[{3 + n}]]" for n in range(10))
    with multiprocessing.get_context("spawn").Pool(3) as processes:
        work = [(str(tmp_path / "cache"), str(path), n) for n in range(3)]
        assert processes.starmap(write_and_read, work) == [expected] * 3
    assert len(files(tmp_path)) == 10
    assert not [file for file in files(tmp_path) if file.suffix != ".json"]


def test_one_query_asked_by_many_threads_is_executed_once(pool: Pool, path: Path, tmp_path: Path) -> None:
    known = golds(pool, tmp_path)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: known.get(str(path), SLOW), range(8)))
    assert len({id(gold) for gold in found}) == 1


def test_a_folder_that_cannot_be_written_costs_the_cache_and_not_the_run(
    pool: Pool, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    assert golds(pool, tmp_path).get(str(path), "SELECT 1").rows == "[[1]]"


@pytest.mark.parametrize(
    ("sql", "blocks", "undefined"),
    [
        ("SELECT a FROM t", None, False),
        ("SELECT a FROM t ORDER BY a DESC", (1, 1, 1), False),
        ("SELECT a, b FROM t ORDER BY b", (2, 1), False),
        ("SELECT a FROM t ORDER BY b LIMIT 2", (2,), False),
        ("SELECT a FROM t ORDER BY b LIMIT 1", (1,), True),
        ("SELECT b FROM t ORDER BY b LIMIT 1", (1,), False),
        ("SELECT a FROM t LIMIT 1", None, True),
        ("SELECT max(a) FROM t LIMIT 1", None, False),
        ("SELECT group_concat(a) FROM t", None, True),
        ("SELECT a FROM (SELECT a FROM t LIMIT 2)", None, True),
        ("SELECT sum(a * 0.1) FROM t", None, False),
        ("SELECT (SELECT a FROM t ORDER BY b LIMIT 1)", None, True),
        ("SELECT (SELECT b FROM t ORDER BY b LIMIT 1)", None, False),
        ("WITH c AS (SELECT * FROM t ORDER BY b LIMIT 1) SELECT a FROM c", None, True),
        ("SELECT count(*) FROM (SELECT a FROM t ORDER BY b LIMIT 1)", None, False),
    ],
)
def test_what_no_order_decides_is_found(
    pool: Pool, path: Path, tmp_path: Path, sql: str, blocks: tuple[int, ...] | None, undefined: bool
) -> None:
    gold = golds(pool, tmp_path).get(str(path), sql)
    assert (gold.kind, gold.blocks, gold.undefined) == ("", blocks, undefined)


def test_bad_golds_are_found_with_their_reason_and_the_score_they_cost(path: Path, tmp_path: Path) -> None:
    rule = reward(timeout_s=0.1, gold_timeout_s=20)
    problems = [
        problem(path, "SELECT a FROM t", "good"),
        problem(path, "SELECT z FROM t", "typo"),
        problem(path, "DROP TABLE t", "write"),
        problem(path, SLOW, "slow"),
        problem(path, "SELECT a FROM t LIMIT 1", "first"),
        problem(path, "SELECT a FROM t WHERE a > 9", "empty"),
        problem(tmp_path / "absent.sqlite", "SELECT 1", "absent"),
    ]
    findings = rule.gold_findings(problems)
    assert [(one.problem_id, one.kind) for one in findings] == [
        ("typo", "fails"),
        ("write", "fails"),
        ("slow", "over limit"),
        ("first", "order undefined"),
        ("empty", "no rows"),
        ("absent", "fails"),
    ]
    assert "no such column: z" in findings[0].message
    assert score_ceiling(7, findings) == 3 / 7
    assert "score ceiling 3/7" in summary(7, findings)
    assert summary(7, []) == ""
    assert not (tmp_path / "absent.sqlite").exists()


def test_a_gold_over_the_limit_is_computed_once_and_its_copy_times_out(path: Path) -> None:
    rule = reward(timeout_s=0.05, gold_timeout_s=20)
    slow = problem(path, SLOW)
    assert rule.gold(slow).rows == "[[3000000]]"
    result = rule(slow, f"```sql\n{SLOW}\n```")
    assert (result.score, result.note.split(":")[0]) == (0.0, "timeout")
    assert rule(slow, "```sql\nSELECT 3000000\n```").score == 1.0


def test_a_large_file_is_hashed_once_for_all_runs_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gold_module, "LARGE_BYTES", 1)
    path = tmp_path / "large"
    path.write_bytes(b"one")
    first = content_hash(str(path))
    gold_module._hashes.clear()
    assert content_hash(str(path)) == first == hashlib.sha256(b"one").hexdigest()
    path.write_bytes(b"two, longer")
    assert content_hash(str(path)) == hashlib.sha256(b"two, longer").hexdigest()


def test_texts_that_a_collation_takes_for_equal_are_tied(pool: Pool, tmp_path: Path) -> None:
    path = database(
        tmp_path / "x.sqlite", "CREATE TABLE t(a TEXT COLLATE NOCASE)", "INSERT INTO t VALUES ('x'), ('X'), ('y')"
    )
    gold = golds(pool, tmp_path).get(str(path), "SELECT a FROM t ORDER BY a")
    assert (gold.blocks, gold.undefined) == ((2, 1), False)
