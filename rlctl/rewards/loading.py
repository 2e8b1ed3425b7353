"""From the settings of `[reward]` to the rewards of a run, with the worker processes they may need."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rlctl.rewards.base import RewardSet, load_rewards
from rlctl.rewards.workers import WorkerPool

if TYPE_CHECKING:  # settings load pydantic, and only their values are needed here
    from rlctl.settings.reward import RewardSettings

MAX_DEFAULT_WORKERS = 8
"""Without `reward.num_workers`: a reward that holds a model is loaded once a worker."""


def rewards_of(settings: RewardSettings) -> RewardSet:
    """The rewards that the settings name. No process is started before a call needs one. Raises ConfigError."""
    size = settings.num_workers or min(MAX_DEFAULT_WORKERS, num_cores())
    return load_rewards(
        settings.functions,
        settings.weights,
        timeout_s=settings.timeout_s,
        options=settings.blocks(),
        workers=settings.workers,
        pool=WorkerPool(size, memory_gb=settings.worker_memory_gb),
    )


def num_cores() -> int:
    """Cores this process may use, which a container may have made fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
