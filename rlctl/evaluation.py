"""Sample and grade the problems of an evaluation: what training does every few steps and `rlctl eval` on its own.

The random numbers depend on the seed and the problem alone, so two evaluations of one model are the same, and two
models meet the same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlctl.rollouts import Groups, Sampler
from rlctl.types import Problem

EVAL_BATCH = 64
"""Problems sent to the sampler at once; between two batches a signal is heard."""


async def evaluate(
    sampler: Sampler,
    problems: Sequence[Problem],
    *,
    stopped: Callable[[], bool] = lambda: False,
    done: Callable[[Groups], None] = lambda groups: None,
) -> Groups:
    """[P] problems -> [P][n] rollouts; the first of them only, in whole batches, once `stopped` says so.

    `done` is called with each batch as it is finished.
    """
    groups: Groups = []
    for first in range(0, len(problems), EVAL_BATCH):
        if stopped():
            break
        batch = await sampler.groups(problems[first : first + EVAL_BATCH], "evaluation")
        done(batch)
        groups += batch
    return groups
