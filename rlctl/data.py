"""The problems of a run: from a file, from the hub, or made on the spot; and the order they come in.

Nothing depends on ambient random state. Which problems are held out, and each epoch's order, are functions of the
seed, made from the raw 64-bit output of numpy's Philox: numpy keeps that stream the same for good, but not what
`permutation` makes of it (https://numpy.org/neps/nep-0019-rng-policy.html).

Where evaluation problems come from, first that applies:
  - `eval_path`: that file, `eval_size` of its rows at most;
  - `path`: `eval_size` of its rows, but no more than a tenth, are held out of training (of fewer than ten, none);
  - a source of `sources.LOADERS` (`generated:...`): its own eval split;
  - the hub: `eval_split`, `eval_size` of its rows at most.
Filters come before all of this; `max_problems` after it, and to training only.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rlctl import sources
from rlctl.data_files import Check, read_file
from rlctl.data_filters import row_filter, without_duplicates
from rlctl.errors import DataError
from rlctl.sources import LazyProblems, Request, Split
from rlctl.types import Problem

if TYPE_CHECKING:  # settings load pydantic, and only their values are needed here
    from rlctl.settings.data import DataSettings, MixedSourceSettings

__all__ = [
    "LazyProblems",
    "Pool",
    "epoch_order",
    "filter_long",
    "joined",
    "load_pools",
    "load_problems",
    "shuffled",
    "some_of",
]

HELD_OUT_SHARE = 10
"""At most one row in so many is held out of a training file."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The problems of one source, and its weight beside the others; None weighs as much as it has problems."""

    name: str
    problems: Sequence[Problem]
    weight: float | None = None


def load_pools(spec: DataSettings, *, split: Split, seed: int, check: Check | None = None) -> list[Pool]:
    """The problems of each source, in its order. `check` says what is wrong with a problem, such as a gold answer that
    no completion could match.

    Raises DataError that names file and line, and what to set instead.
    """
    tables = spec.tables()
    pools = []
    for table in tables:
        problems = _load(table, eval_size=spec.eval_size, split=split, seed=seed, check=check)
        if len(tables) > 1:
            problems = _belonging_to(table.shown_name, problems)
        pools.append(Pool(table.shown_name, problems, table.weight))
    return pools


def load_problems(spec: DataSettings, *, split: Split, seed: int, check: Check | None = None) -> Sequence[Problem]:
    """The problems of all sources, one source after the other. Raises what `load_pools` raises."""
    return joined(load_pools(spec, split=split, seed=seed, check=check))


def joined(pools: Sequence[Pool]) -> Sequence[Problem]:
    """The problems of all pools as one sequence, made when asked for if those of a pool are."""
    if len(pools) == 1:
        return pools[0].problems
    if not any(isinstance(pool.problems, LazyProblems) for pool in pools):
        return [problem for pool in pools for problem in pool.problems]
    ends = list(itertools.accumulate(len(pool.problems) for pool in pools))

    def at(index: int) -> Problem:
        which = bisect.bisect_right(ends, index)
        return pools[which].problems[index - (ends[which - 1] if which else 0)]

    return LazyProblems(at, size=ends[-1])


def _belonging_to(name: str, problems: Sequence[Problem]) -> Sequence[Problem]:
    """The problems with the source's name, in their ids too: two files may number their rows alike."""

    def renamed(problem: Problem) -> Problem:
        return replace(problem, id=f"{name}/{problem.id}", source=name)

    if isinstance(problems, LazyProblems):
        return LazyProblems(lambda index: renamed(problems[index]), size=len(problems))
    return [renamed(problem) for problem in problems]


def _load(
    spec: MixedSourceSettings, *, eval_size: int, split: Split, seed: int, check: Check | None
) -> Sequence[Problem]:
    if split == "eval" and spec.eval_path:
        rows = _chosen_rows(spec.eval_path, spec, check=check)
        return _pick(rows, some_of(len(rows), size=eval_size, seed=seed))
    if spec.path:
        return _from_training_file(spec, eval_size=eval_size, split=split, seed=seed, check=check)
    problems = sources.load(Request(spec, spec.source, split, seed, eval_size, check))
    if split == "train":
        return _at_most(spec.max_problems, _once(spec, problems), seed=seed)
    if not sources.is_on_hub(spec.source):
        return problems
    return _pick(problems, some_of(len(problems), size=eval_size, seed=seed))


def _from_training_file(
    spec: MixedSourceSettings, *, eval_size: int, split: Split, seed: int, check: Check | None
) -> Sequence[Problem]:
    problems = _chosen_rows(spec.path or "", spec, check=check)
    if spec.eval_path:
        return _at_most(spec.max_problems, problems, seed=seed)
    held_out = some_of(len(problems), size=min(eval_size, len(problems) // HELD_OUT_SHARE), seed=seed)
    if split == "train":
        rest = _pick(problems, sorted(set(range(len(problems))) - set(held_out)))
        return _at_most(spec.max_problems, rest, seed=seed)
    return _pick(problems, held_out)


def _chosen_rows(path: str, spec: MixedSourceSettings, *, check: Check | None) -> list[Problem]:
    keeps = row_filter(spec.where, spec.match)
    return list(_once(spec, read_file(Path(path), columns=sources.columns_of(spec), check=check, keeps=keeps)))


def _once(spec: MixedSourceSettings, problems: Sequence[Problem]) -> Sequence[Problem]:
    return without_duplicates(problems) if spec.dedupe else problems


def _at_most(limit: int | None, problems: Sequence[Problem], *, seed: int) -> Sequence[Problem]:
    if limit is None or limit >= len(problems):
        return problems
    if isinstance(problems, LazyProblems):
        return LazyProblems(problems.__getitem__, size=limit)
    return _pick(problems, some_of(len(problems), size=limit, seed=seed))


def _pick(problems: Sequence[Problem], indices: Sequence[int]) -> list[Problem]:
    return [problems[index] for index in indices]


def some_of(num_problems: int, *, size: int, seed: int) -> list[int]:
    """`size` indices, or all when there are fewer, in ascending order."""
    return sorted(int(index) for index in shuffled(num_problems, purpose=_HOLD_OUT, seed=seed)[:size])


def epoch_order(num_problems: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order of one epoch: a permutation of 0..num_problems-1 that depends on nothing but the arguments."""
    return shuffled(num_problems, purpose=_EPOCH, seed=seed, number=epoch)


_HOLD_OUT, _EPOCH, BATCH = 1, 2, 3
"""What a shuffle is for: keeps the held-out rows independent of the order of epoch 0."""


def shuffled(num_problems: int, *, purpose: int, seed: int, number: int = 0) -> npt.NDArray[np.int64]:
    """A permutation of 0..num_problems-1, another one for each purpose, seed and number."""
    bits = np.random.Philox(np.random.SeedSequence([seed, purpose, number]))
    return np.argsort(bits.random_raw(num_problems), kind="stable")


@dataclass(frozen=True, slots=True)
class FilteredProblems:
    """What a length filter left, and the prompt length in tokens of each problem it dropped, by id."""

    problems: list[Problem]
    dropped: dict[str, int]


def filter_long(
    problems: Sequence[Problem], prompt_lengths: Sequence[int], *, max_prompt_length: int
) -> FilteredProblems:
    """Drop problems whose prompt, chat template included, is longer than `max_prompt_length` tokens.

    A prompt of exactly that length stays. Raises DataError when none is left.
    """
    pairs = list(zip(problems, prompt_lengths, strict=True))
    kept = [problem for problem, length in pairs if length <= max_prompt_length]
    if not kept:
        shortest = min(prompt_lengths, default=0)
        raise DataError(
            f"0 of {len(pairs)} rows left after length filter (max {max_prompt_length}, shortest {shortest}).",
            hint="raise data.max_prompt_length; the model's context must hold it and rollout.max_response_length.",
        )
    return FilteredProblems(kept, {problem.id: length for problem, length in pairs if length > max_prompt_length})


def require_full_batch(num_rows: int, *, batch_size: int) -> None:
    """Raises DataError when not even one batch can be filled: a run of no steps would pass for a success."""
    if num_rows < batch_size:
        raise DataError(
            f"{num_rows} rows < batch {batch_size}: not one step could be taken.",
            hint=f"lower trainer.train_batch_size to {max(num_rows, 1)}, or give more rows.",
        )
