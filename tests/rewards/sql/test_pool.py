"""Worker processes: replaced when killed, gone with their parent, and light."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlctl.rewards.sql.pool import Limits, Pool
from tests.rewards.sql.helpers import database, fingerprint

ROOT = Path(__file__).resolve().parents[3]
IN_ONE_INSTRUCTION = "SELECT hex(zeroblob(8000000)) LIKE '%' || hex(zeroblob(4000)) || '1%'"
SOON_S = 30.0
"""A third of what such a query takes of a processor, and far more than to kill it on a machine that is busy."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(database(tmp_path / "d.sqlite", "CREATE TABLE t(a)", "INSERT INTO t VALUES (1), (2)"))


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(Limits(workers=2, timeout_s=0.5, memory_mb=256, max_rows=1000, max_result_mb=32))
    yield pool
    pool.close()


def rows(pool: Pool, path: str, sql: str = "SELECT a FROM t", **request: object) -> object:
    reply = pool.ask({"db": path, "sql": sql, **request})
    return reply["rows"] if reply["ok"] else (reply["kind"], reply["message"])


def is_running(process: int) -> bool:
    """Whether there is such a process that is more than a zombie (state Z of /proc/PID/stat)."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone_within(seconds: float, processes: list[int]) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(map(is_running, processes)):
        time.sleep(0.02)
    return not any(map(is_running, processes))


def test_a_worker_is_kept_and_one_that_died_is_replaced(pool: Pool, path: str) -> None:
    assert rows(pool, path) == rows(pool, path) == "[[1],[2]]"
    (worker,) = pool.process_ids
    os.kill(worker, signal.SIGKILL)
    assert rows(pool, path) == "[[1],[2]]"
    assert pool.process_ids != [worker]


def test_a_query_that_no_handler_stops_is_killed_with_its_worker(pool: Pool, path: str) -> None:
    rows(pool, path)
    (worker,) = pool.process_ids
    start = time.monotonic()
    reply = pool.ask(
        {"db": path, "sql": IN_ONE_INSTRUCTION, "compare": {"gold": "g", "payload": '{"rows": "[]", "blocks": null}',
         "comparison": "bird", "tolerance": 0.0}}
    )  # fmt: skip
    assert (reply["ok"], reply["kind"]) == (False, "timeout")
    assert time.monotonic() - start < SOON_S
    assert not is_running(worker)
    assert rows(pool, path) == "[[1],[2]]"


def test_no_more_workers_than_allowed_answer_many_threads_in_order(pool: Pool, path: str) -> None:
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda n: rows(pool, path, f"SELECT {n}"), range(300)))
    assert found == [f"[[{n}]]" for n in range(300)]
    assert len(pool.process_ids) <= 2


def test_workers_hold_no_torch_and_little_memory(pool: Pool, path: str) -> None:
    rows(pool, path)
    (worker,) = pool.process_ids
    mapped = Path(f"/proc/{worker}/maps").read_text()
    assert "_sqlite3" in mapped
    assert not any(name in mapped for name in ("torch", "numpy", "pydantic"))
    resident_kib = next(
        int(line.split()[1]) for line in Path(f"/proc/{worker}/status").read_text().split("\n") if "VmRSS" in line
    )
    assert resident_kib < 40 * 1024


def test_a_changed_database_is_opened_anew(pool: Pool, path: str) -> None:
    assert rows(pool, path) == "[[1],[2]]"
    database(Path(path), "DELETE FROM t WHERE a = 1")
    assert rows(pool, path) == "[[2]]"


@pytest.mark.parametrize("content", [None, b"", b"not a database at all, but long enough to be read"])
def test_a_file_that_is_no_database_is_named(pool: Pool, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "none.sqlite"
    if content is not None:
        path.write_bytes(content)
    kind, message = rows(pool, str(path))  # type: ignore[misc]
    assert kind == "database"
    assert str(path) in message


def test_changes_that_wait_in_a_log_are_not_silently_missed(pool: Pool, path: str) -> None:
    Path(path + "-wal").write_bytes(b"x" * 100)
    kind, message = rows(pool, path)  # type: ignore[misc]
    assert kind == "database"
    assert "wal_checkpoint" in message


def test_a_database_in_wal_mode_is_read_without_a_file_beside_it(pool: Pool, tmp_path: Path) -> None:
    path = database(tmp_path / "w.sqlite", "PRAGMA journal_mode = WAL", "CREATE TABLE t(a)", "INSERT INTO t VALUES (1)")
    before = fingerprint(tmp_path)
    assert rows(pool, str(path)) == "[[1]]"
    assert fingerprint(tmp_path) == before == {"w.sqlite": before["w.sqlite"]}


def test_results_have_a_largest_number_of_rows_and_size(pool: Pool, path: str) -> None:
    series = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT {}) SELECT n{} FROM r"
    assert rows(pool, path, series.format(1001, "")) == ("too large", "more than 1000 rows")
    assert isinstance(rows(pool, path, series.format(1000, "")), str)
    assert rows(pool, path, series.format(900, ", hex(zeroblob(50000))"))[0] == "too large"  # type: ignore[index]


def test_scans_can_be_run_backwards(pool: Pool, path: str) -> None:
    assert rows(pool, path, backwards=True) == "[[2],[1]]"


def test_more_databases_than_are_kept_open_can_be_asked_in_turn(pool: Pool, tmp_path: Path) -> None:
    paths = [database(tmp_path / f"{n}.sqlite", f"CREATE TABLE t AS SELECT {n} AS a") for n in range(40)]
    for _ in range(2):
        assert [rows(pool, str(one)) for one in paths] == [f"[[{n}]]" for n in range(40)]


def test_closing_ends_all_workers_and_asking_again_starts_new_ones(pool: Pool, path: str) -> None:
    rows(pool, path)
    old = pool.process_ids
    pool.close()
    pool.close()
    assert gone_within(SOON_S, old)
    assert rows(pool, path) == "[[1],[2]]"


def test_a_query_in_flight_ends_when_the_pool_is_closed(pool: Pool, path: str) -> None:
    replies: list[object] = []
    slow = threading.Thread(target=lambda: replies.append(rows(pool, path, IN_ONE_INSTRUCTION)))
    slow.start()
    time.sleep(0.3)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < SOON_S
    slow.join(25)
    assert not slow.is_alive()


PARENT = """
import sys, threading, time
from rlctl.rewards.sql.pool import Limits, Pool
pool = Pool(Limits(workers=4, timeout_s=60, memory_mb=256, max_rows=1000, max_result_mb=32))
path, slow = sys.argv[1:3]
for n in range(2):
    threading.Thread(target=lambda: pool.ask({"db": path, "sql": slow}), daemon=True).start()
while len(pool.process_ids) < 2: time.sleep(0.01)
time.sleep(0.5)
print(*pool.process_ids, flush=True)
if sys.argv[3] == "exit": sys.exit(0)
time.sleep(60)
"""


@pytest.mark.parametrize("end", ["kill", "terminate", "exit"])
def test_workers_end_with_their_parent_in_the_middle_of_a_query(path: str, end: str) -> None:
    command = [sys.executable, "-c", PARENT, path, IN_ONE_INSTRUCTION, end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2
        if end != "exit":
            getattr(parent, end)()
        parent.wait(10)
        assert gone_within(SOON_S, workers)
