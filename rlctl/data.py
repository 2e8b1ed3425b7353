"""The problems of a run: from a file, from the hub, or made on the spot; and the order they come in.

Nothing depends on ambient random state. Which problems are held out, and each epoch's order, are functions of the
seed, made from the raw 64-bit output of numpy's Philox: numpy keeps that stream the same for good, but not what
`permutation` makes of it (https://numpy.org/neps/nep-0019-rng-policy.html).

Where evaluation problems come from, first that applies:
  - `eval_path`: that file, `eval_size` of its rows at most;
  - `path`: `eval_size` of its rows, but no more than a tenth, are held out of training (of fewer than ten, none);
  - `generated:...`: the generator's own eval split;
  - the hub: `eval_split`, `eval_size` of its rows at most.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

import numpy as np
import numpy.typing as npt

from rlctl import hub
from rlctl.data_files import READERS, Check, Columns, Row, problems_from, read_file
from rlctl.errors import DataError
from rlctl.types import Problem

if TYPE_CHECKING:  # settings load pydantic, and only their values are needed here
    from rlctl.settings import DataSettings

Split = Literal["train", "eval"]

HELD_OUT_SHARE = 10
"""At most one row in so many is held out of a training file."""


def load_problems(spec: DataSettings, *, split: Split, seed: int, check: Check | None = None) -> Sequence[Problem]:
    """The problems to train or to evaluate on, in the order of their source.

    `check` says what is wrong with a problem, such as a gold answer that no completion could match.
    Raises DataError that names file and line, and what to set instead.
    """
    if split == "eval" and spec.eval_path:
        problems = read_file(Path(spec.eval_path), columns=_columns(spec), check=check)
        return _pick(problems, _chosen(len(problems), size=spec.eval_size, seed=seed))
    if spec.path:
        return _from_training_file(spec, split=split, seed=seed, check=check)
    if spec.source.startswith("generated:"):
        return _generated(spec, split=split, seed=seed)
    problems = _from_hub(spec, split=split, check=check)
    return problems if split == "train" else _pick(problems, _chosen(len(problems), size=spec.eval_size, seed=seed))


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


def _generated(spec: DataSettings, *, split: Split, seed: int) -> Sequence[Problem]:
    from rlctl.problems import word_problem

    known: Mapping[str, Callable[[int], Problem]] = {
        "generated:word-problems": lambda index: word_problem(seed, index, split=split),
    }
    if spec.source not in known:
        near = difflib.get_close_matches(spec.source, known, n=1, cutoff=0.0)[0]
        raise DataError(f"data.source = {spec.source!r}: no such generator; the nearest is {near!r}.")
    return LazyProblems(known[spec.source], size=spec.num_generated if split == "train" else spec.eval_size)


class LazyProblems(Sequence[Problem]):
    """Problems made when asked for: a sequence over a pure function of the index."""

    def __init__(self, make: Callable[[int], Problem], *, size: int) -> None:
        self._make = make
        self._indices = range(size)

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> list[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | list[Problem]:
        if isinstance(index, slice):
            return [self._make(one) for one in self._indices[index]]
        return self._make(self._indices[index])


def _from_hub(spec: DataSettings, *, split: Split, check: Check | None) -> list[Problem]:
    """Read through `datasets`: from its cache when the hub cannot be reached, which is found out within seconds."""
    complaint = f"data.source = {spec.source!r}"
    if Path(spec.source).suffix.lower() in READERS:
        raise DataError(f"{complaint} is a file.", hint=f"name files by path: --set data.path={spec.source}")
    reachable, reason = hub.hub_reachable()
    cure = "give a file: --set data.path=FILE; or --set data.source=generated:word-problems needs none."
    if not reachable and not hub.is_cached_dataset(spec.source):
        raise DataError(f"{complaint} is not in the local cache, and {reason}.", hint=cure)
    import datasets

    if not reachable:
        # Otherwise every request is tried again for half a minute before the cache is looked at.
        datasets.config.HF_HUB_OFFLINE = True
    hub_split = spec.train_split if split == "train" else spec.eval_split
    try:
        table = datasets.load_dataset(spec.source, spec.subset, split=hub_split)
    except (OSError, ValueError) as error:
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{complaint}, subset {spec.subset!r}, split {hub_split!r}: {message}", hint=cure) from error
    where = f"{spec.source}/{hub_split}"
    rows: Iterator[Row] = (Row(number, values) for number, values in enumerate(table, start=1))
    return problems_from(rows, where=where, prefix=where, columns=_columns(spec), check=check)


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
