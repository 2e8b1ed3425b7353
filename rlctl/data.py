"""The problems of a run: from a file, from the hub, or made on the spot; and the order they come in.

Nothing depends on ambient random state. Which problems are held out, and each epoch's order, are functions of the
seed, made from the raw 64-bit output of numpy's Philox: numpy keeps that stream the same for good, but not what
`permutation` makes of it (https://numpy.org/neps/nep-0019-rng-policy.html).

Where evaluation problems come from, first that applies:
  - `eval_path`: that file, `eval_size` of its rows at most;
  - `path`: `eval_size` of its rows, but no more than a tenth, are held out of training (of fewer than ten, none);
  - a source of `sources.LOADERS` (`generated:...`): its own eval split;
  - the hub: `eval_split`, `eval_size` of its rows at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rlctl import sources
from rlctl.data_files import Check, Columns, read_file
from rlctl.errors import DataError
from rlctl.sources import LazyProblems, Request, Split
from rlctl.types import Problem

if TYPE_CHECKING:  # settings load pydantic, and only their values are needed here
    from rlctl.settings import DataSettings

__all__ = ["LazyProblems", "epoch_order", "filter_long", "load_problems", "require_full_batch"]

HELD_OUT_SHARE = 10
"""At most one row in so many is held out of a training file."""


def load_problems(spec: DataSettings, *, split: Split, seed: int, check: Check | None = None) -> Sequence[Problem]:
    """The problems to train or to evaluate on, in the order of their source.

    `check` says what is wrong with a problem, such as a gold answer that no completion could match.
    Raises DataError that names file and line, and what to set instead.
    """
    if split == "eval" and spec.eval_path:
        rows = read_file(Path(spec.eval_path), columns=_columns(spec), check=check)
        return _pick(rows, _chosen(len(rows), size=spec.eval_size, seed=seed))
    if spec.path:
        return _from_training_file(spec, split=split, seed=seed, check=check)
    problems = sources.load(Request(spec, spec.source, split, seed, check))
    if split == "train" or not sources.is_on_hub(spec.source):
        return problems
    return _pick(problems, _chosen(len(problems), size=spec.eval_size, seed=seed))


def _from_training_file(spec: DataSettings, *, split: Split, seed: int, check: Check | None) -> list[Problem]:
    problems = read_file(Path(spec.path or ""), columns=_columns(spec), check=check)
    if spec.eval_path:
        return problems
    held_out = _chosen(len(problems), size=min(spec.eval_size, len(problems) // HELD_OUT_SHARE), seed=seed)
    if split == "train":
        return _pick(problems, sorted(set(range(len(problems))) - set(held_out)))
    return _pick(problems, held_out)


def _columns(spec: DataSettings) -> Columns:
    return Columns(spec.question_key, spec.answer_key, spec.id_key)


def _pick(problems: Sequence[Problem], indices: Sequence[int]) -> list[Problem]:
    return [problems[index] for index in indices]


def _chosen(num_problems: int, *, size: int, seed: int) -> list[int]:
    """`size` indices, or all when there are fewer, in ascending order."""
    return sorted(int(index) for index in _shuffled(num_problems, purpose=_HOLD_OUT, seed=seed)[:size])


def epoch_order(num_problems: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order of one epoch: a permutation of 0..num_problems-1 that depends on nothing but the arguments."""
    return _shuffled(num_problems, purpose=_EPOCH, seed=seed, number=epoch)


_HOLD_OUT, _EPOCH = 1, 2
"""What a shuffle is for: keeps the held-out rows independent of the order of epoch 0."""


def _shuffled(num_problems: int, *, purpose: int, seed: int, number: int = 0) -> npt.NDArray[np.int64]:
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
