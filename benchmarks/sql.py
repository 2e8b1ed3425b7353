"""Executions a second of the reward `sql` on small databases: `python benchmarks/sql.py`.

Queries are the golds of generated problems (two tables, 20 to 50 rows each), executed and compared with their gold by
as many threads as there are workers. First the pool alone, then whole rewards (extraction, gold look-up, comparison),
then what a killed query costs. Nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from rlctl.rewards.sql.reward import sql
from rlctl.text_to_sql.questions import text_to_sql_problem

IN_ONE_INSTRUCTION = "SELECT hex(zeroblob(8000000)) LIKE '%' || hex(zeroblob(4000)) || '1%'"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--executions", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=None, help="processes; default: as in a run")
    parser.add_argument("--threads", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["RLCTL_CACHE_DIR"] = cache
        measure(options.executions, workers=options.workers, num_threads=options.threads)


def measure(executions: int, *, workers: int | None, num_threads: int) -> None:
    rule = sql(workers=workers, timeout_s=5)
    problems = [text_to_sql_problem(0, index, split="train") for index in range(500)]
    start = time.perf_counter()
    for problem in problems:
        rule.gold(problem)
    print(f"golds: {len(problems) / (time.perf_counter() - start):,.0f} a second, each with its ties, written to disk")
    pool = rule.golds.pool

    def execute(number: int) -> bool:
        problem = problems[number % len(problems)]
        return bool(pool.ask({"db": problem.extra["database"], "sql": problem.answer})["ok"])

    def grade(number: int) -> bool:
        problem = problems[number % len(problems)]
        return rule(problem, rule.gold_completion(problem)).score == 1.0

    with ThreadPoolExecutor(num_threads) as threads:
        for name, work in (("executed", execute), ("graded", grade)):
            assert all(threads.map(work, range(200)))
            start = time.perf_counter()
            assert all(threads.map(work, range(executions)))
            seconds = time.perf_counter() - start
            print(f"{name}: {executions / seconds:,.0f} a second ({executions:,} in {seconds:.2f} s)", flush=True)
    pool.close()
    rule = sql(workers=1, timeout_s=0.5)
    grade(0)
    start = time.perf_counter()
    result = rule(problems[0], f"```sql\n{IN_ONE_INSTRUCTION}\n```")
    killed = time.perf_counter() - start
    start = time.perf_counter()
    assert grade(0)
    print(f"a query that no handler stops: {killed:.2f} s with a limit of {rule.timeout_s:g} s ({result.note})")
    print(f"the next one, with a new worker: {(time.perf_counter() - start) * 1000:.0f} ms")
    rule.close()


if __name__ == "__main__":
    main()
