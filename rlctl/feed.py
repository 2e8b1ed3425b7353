"""Which problems a step gets: each source's order, their mixture by weight, and what the curriculum passes over.

Each source runs through its problems epoch by epoch, in an order that depends on the seed alone, and has a cursor. A
batch takes from each source as many as its share, with what does not divide spread evenly over the steps. Where nothing
is passed over or refilled, the cursors are a function of the step (`seek`); where something is, they are state, which a
checkpoint keeps with the curriculum (`state_dict`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlctl import data
from rlctl.curriculum import Curriculum
from rlctl.data import Pool
from rlctl.errors import CheckpointError, DataError
from rlctl.seeds import fraction
from rlctl.types import Problem

GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, less their whole part, fill [0, 1) more evenly than any random numbers."""


class Feed:
    """Hands out problems, step after step."""

    def __init__(
        self,
        pools: Sequence[Pool],
        *,
        batch_size: int,
        seed: int,
        shuffle: bool,
        curriculum: Curriculum | None = None,
        accept: Callable[[Sequence[Problem]], None] = lambda problems: None,
    ) -> None:
        """`accept` looks at all that is handed out, and raises what it will not have.

        Raises DataError when a source has fewer problems than its share of one batch.
        """
        self.pools, self.batch_size, self.seed, self.shuffle = pools, batch_size, seed, shuffle
        self.curriculum, self.accept = curriculum, accept
        self.cursors = [0] * len(pools)
        self._taken: set[str] = set()
        self._orders: dict[int, tuple[int, Sequence[int]]] = {}
        weights = [pool.weight or float(len(pool.problems)) for pool in pools]
        self._bounds = [math.fsum(weights[:end]) / math.fsum(weights) for end in range(len(pools))] + [1.0]
        self._require_enough()

    def _require_enough(self) -> None:
        for index, pool in enumerate(self.pools):
            most = math.ceil(self.batch_size * (self._bounds[index + 1] - self._bounds[index]) - 1e-9)
            if len(pool.problems) < most:
                raise DataError(
                    f"source {pool.name!r} has {len(pool.problems)} problems, and its weight gives it {most} of each "
                    f"batch of {self.batch_size}.",
                    hint="lower its weight or trainer.train_batch_size.",
                )

    def batch(self, step: int) -> list[Problem]:
        """The problems of step 1.., none of them twice."""
        self._taken = set()
        problems = self._mixed(self.batch_size, step, fill=True)
        if len(self.pools) == 1:
            return problems
        # Sources side by side would make minibatches of one source each.
        return [problems[i] for i in data.shuffled(len(problems), purpose=data.BATCH, seed=self.seed, number=step)]

    def more(self, step: int, count: int) -> list[Problem]:
        """Up to `count` problems beyond those that the step has had; fewer where a source has no other."""
        return self._mixed(count, step, fill=False)

    def seek(self, step: int) -> None:
        """Go to where a run stands before `step`, if nothing is passed over or refilled: a function of the seed."""
        self.cursors = [0] * len(self.pools)
        for earlier in range(1, step):
            for index, count in enumerate(self.counts(self.batch_size, earlier)):
                self.cursors[index] = self._start(index, count) + count

    def counts(self, size: int, step: int) -> list[int]:
        """How many of `size` problems each source gives at a step: its share, rounded so that they add up."""
        offset = (fraction(f"mixture/{self.seed}") + step * GOLDEN) % 1.0
        ends = [math.ceil(round(size * bound - offset, 9)) for bound in self._bounds]
        ends[0], ends[-1] = 0, size
        return [later - earlier for earlier, later in itertools.pairwise(ends)]

    def _mixed(self, size: int, step: int, *, fill: bool) -> list[Problem]:
        counts = self.counts(size, step)
        problems = [problem for index, count in enumerate(counts) for problem in self._take(index, count, fill=fill)]
        self.accept(problems)
        return problems

    def _take(self, index: int, count: int, *, fill: bool) -> list[Problem]:
        """The next problems of a source; with `fill`, resting ones where a whole pass has too few others."""
        pool, size = self.pools[index], len(self.pools[index].problems)
        picked: list[Problem] = []
        resting: list[Problem] = []
        cursor = self._start(index, count)
        # All there are: what is left of an epoch, and the next one where that is not a whole one.
        end = cursor + size if cursor % size == 0 else (cursor // size + 2) * size
        seen = set(self._taken)
        while len(picked) < count and cursor < end:
            epoch, within = divmod(cursor, size)
            problem = pool.problems[self._order(index, epoch)[within]]
            cursor += 1
            if problem.id in seen:
                continue
            seen.add(problem.id)
            rests = self.curriculum is not None and self.curriculum.rests(problem.id, epoch=epoch)
            (resting if rests else picked).append(problem)
        if fill and len(picked) < count:
            assert self.curriculum is not None
            picked += self.curriculum.recalled(resting[: count - len(picked)])
        self.cursors[index] = cursor
        self._taken.update(problem.id for problem in picked)
        return picked

    def _start(self, index: int, count: int) -> int:
        """Where the next `count` problems begin: what is left of an epoch and fills no batch is left out of it."""
        cursor, size = self.cursors[index], len(self.pools[index].problems)
        left = size - cursor % size if cursor % size else size
        return cursor if count <= left else cursor + left

    def _order(self, index: int, epoch: int) -> Sequence[int]:
        if self._orders.get(index, (-1,))[0] != epoch:
            size = len(self.pools[index].problems)
            order = data.epoch_order(size, seed=self.seed, epoch=epoch).tolist() if self.shuffle else range(size)
            self._orders[index] = (epoch, order)
        return self._orders[index][1]

    def state_dict(self, *, at: Sequence[int] | None = None) -> dict[str, Any]:
        """Where each source stands, or stood `at`, and what the curriculum knows: plain data."""
        standing = self.cursors if at is None else at
        cursors = {pool.name: cursor for pool, cursor in zip(self.pools, standing, strict=True)}
        return {"cursors": cursors, "curriculum": self.curriculum.state_dict() if self.curriculum else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken. Raises CheckpointError when it is of other sources or not whole."""
        cursors = state.get("cursors")
        names = [pool.name for pool in self.pools]
        if not isinstance(cursors, Mapping) or sorted(cursors) != sorted(names):
            held = ", ".join(cursors) if isinstance(cursors, Mapping) else "none"
            raise CheckpointError(
                f"the checkpoint's data is of other sources ({held}) than this run's ({', '.join(names)})."
            )
        if not all(type(cursor) is int and cursor >= 0 for cursor in cursors.values()):
            raise CheckpointError(f"the checkpoint's data has a cursor that is no whole number: {dict(cursors)}.")
        self.cursors = [cursors[name] for name in names]
        if self.curriculum is not None and state.get("curriculum") is not None:
            self.curriculum.load_state_dict(state["curriculum"])
