"""`[reward.sql]`: how queries are found, executed and compared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from rlctl.rewards.sql.extract import Acceptance
from rlctl.settings.block import Block, Count


class SqlRewardSettings(Block):
    comparison: Literal["bird", "strict"] = "bird"
    """`bird` compares sets of rows, as the BIRD benchmark; `strict` multisets, in order where the gold is ordered."""
    float_tolerance: float = Field(0.0, ge=0, lt=1)
    """Relative difference that two numbers may have when one is a float; 0 compares exactly, as the benchmark."""
    accept: tuple[Acceptance, ...] = ()
    """Places to take a query from beside the last closed SQL fence after the thinking; `first-fence` replaces last."""
    timeout_s: PositiveFloat = 30.0
    """Seconds one query of a completion may take."""
    gold_timeout_s: PositiveFloat = 300.0
    """Seconds a gold query may take, once: its result is kept in the cache folder."""
    leave_out_bad_golds: bool = False
    """Leave out problems whose gold query fails or is over `timeout_s`, since no completion could be right; false keeps
    them, counts them, and tells how far they lower the best score."""
    memory_mb: int = Field(512, ge=128, lt=2**20)
    """Memory of one worker process, in MiB; a query that wants more fails."""
    max_rows: Count = 50_000
    """Rows of a result; a query that gives more fails."""
    max_result_mb: int = Field(32, ge=1, le=512)
    """Size of a result, and of any one value in it, in MiB; a query that gives more fails."""
    workers: Count | None = None
    """Processes that execute queries; null takes one a core, and at least eight."""
