"""The reward `sql`: does the completion's query give what the gold query gives.

1.0 when it does; else 0.1 when it executes or the answer is well formed; else 0.0. Beside the score stand
`execution_accuracy` (1.0 or 0.0), `execution_success` and `format_correct`. A gold query that fails is no fault of the
completion's: the call fails and is counted, and no completion is scored against nothing.
Source of the scale: the BIRD recipe of Snowflake's RL examples for verl (docs/text-to-sql.md tells what differs).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rlctl.rewards.base import Place, RewardResult
from rlctl.rewards.sql import guard
from rlctl.rewards.sql.extract import Acceptance, Extraction, extract_sql
from rlctl.rewards.sql.gold import Gold, GoldResults
from rlctl.rewards.sql.lint import Finding, find_bad_golds
from rlctl.rewards.sql.pool import Limits, Pool, Reply
from rlctl.rewards.sql.rows import Comparison
from rlctl.types import Problem

PARTIAL = 0.1
"""For a query that executes, or an answer that is well formed."""


def sql(**options: Any) -> Sql:
    """The reward with the defaults of `[reward.sql]` for what is left out. Raises pydantic's ValidationError."""
    from rlctl.settings.sql import SqlRewardSettings

    return Sql(**SqlRewardSettings(**options).model_dump())


@dataclass(frozen=True)
class Sql:
    """The reward; its fields are the settings of `[reward.sql]`, which say what each means."""

    runs: ClassVar[Place] = "thread"
    keeps_time: ClassVar[bool] = True

    comparison: Comparison
    float_tolerance: float
    accept: Sequence[Acceptance]
    timeout_s: float
    gold_timeout_s: float
    leave_out_bad_golds: bool
    memory_mb: int
    max_rows: int
    max_result_mb: int
    workers: int | None

    def __call__(self, problem: Problem, completion: str) -> RewardResult:
        extraction = extract_sql(completion, accept=self.accept)
        if extraction.sql is None:
            return _result(extraction, executed=False, same=False, note=extraction.why)
        gold = self.gold(problem)
        if gold.kind:
            raise GoldFails(f"the gold query has no result ({gold.kind}: {gold.message})")
        reply = self._compare(database_of(problem), extraction.sql, gold)
        if not reply["ok"]:
            if reply["kind"] == "database":
                raise GoldFails(reply["message"])
            return _result(extraction, executed=False, same=False, note=f"{reply['kind']}: {reply['message']}")
        note = f"{reply['num_rows']} rows, gold {gold.num_rows}, {self.comparison}"
        return _result(extraction, executed=True, same=reply["same"], note=note)

    def gold(self, problem: Problem) -> Gold:
        """What the problem's gold query gives, or why it gives nothing. Raises OSError without its database."""
        return self.golds.get(database_of(problem), problem.answer)

    def gold_complaint(self, problem: Problem) -> str | None:
        """Cheap enough for every problem at load: whether there is a database and a query; `lint.py` executes it."""
        try:
            guard.check_file(database_of(problem))
        except guard.UnusableDatabase as error:
            return f"{error}"
        except KeyError:
            return "names no database; a data set for the reward sql has a column with its path (data.database_key)"
        return None

    def gold_completion(self, problem: Problem) -> str:
        return f"<think>\n</think>\n```sql\n{problem.answer}\n```"

    def gold_findings(self, problems: Sequence[Problem]) -> list[Finding]:
        """What is wrong with the gold queries of these problems, found by executing them (`lint.py`)."""
        return find_bad_golds(problems, gold=self.gold, timeout_s=self.timeout_s, workers=self.limits.workers)

    @property
    def limits(self) -> Limits:
        workers = self.workers or default_workers()
        return Limits(workers, self.timeout_s, self.memory_mb, self.max_rows, self.max_result_mb)

    @functools.cached_property
    def golds(self) -> GoldResults:
        return _shared_golds(self.limits, self.gold_timeout_s, os.environ.get("RLCTL_CACHE_DIR"))

    def close(self) -> None:
        """End the workers; the next call starts new ones."""
        if "golds" in self.__dict__:
            self.golds.pool.close()

    def _compare(self, database: str, sql: str, gold: Gold) -> Reply:
        compare = {
            "gold": gold.digest,
            "payload": gold.payload,
            "comparison": self.comparison,
            "tolerance": self.float_tolerance,
        }
        return self.golds.pool.ask({"db": database, "sql": sql, "compare": compare})


class GoldFails(Exception):
    """The problem cannot be scored, whatever the completion says."""


def database_of(problem: Problem) -> str:
    """The absolute path of its database. Raises KeyError when it names none."""
    return os.path.abspath(str(problem.extra["database"]))  # noqa: PTH100  # for every completion: a tenth of Path's time


def default_workers() -> int:
    """A worker a core; on few cores eight, so that one slow query does not hold up the rest."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(8, min(cores, 64))


@functools.lru_cache(maxsize=16)
def _shared_golds(limits: Limits, timeout_s: float, cache_dir: str | None) -> GoldResults:
    """One pool and one memory for all rewards of this process with the same limits."""
    return GoldResults(Pool(limits), timeout_s=timeout_s)


def _result(extraction: Extraction, *, executed: bool, same: bool, note: str) -> RewardResult:
    well_formed = extraction.format_correct
    return RewardResult(
        1.0 if same else PARTIAL if executed or well_formed else 0.0,
        note=note,
        form=extraction.form,
        parsed=extraction.sql is not None,
        extra={
            "execution_accuracy": float(same),
            "execution_success": float(executed),
            "format_correct": float(well_formed),
        },
    )
