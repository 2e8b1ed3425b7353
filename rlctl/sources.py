"""Where problems come from, by the prefix of `data.source`: a table, and what stands behind each row.

A source is `PREFIX:NAME`; its loader gives the problems of one split. What has no prefix of the table is a data set on
the hub, and files are named by `data.path`. To add a source, write a function `Request -> problems` and put its prefix
into LOADERS; what its package is called and how it is installed is the loader's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from rlctl import hub
from rlctl.data_files import READERS, Check, Columns, DatabaseColumns, Row, problems_from
from rlctl.data_filters import row_filter
from rlctl.environments import reasoning_gym, verifiers
from rlctl.errors import DataError
from rlctl.presets import did_you_mean
from rlctl.types import Problem

if TYPE_CHECKING:  # settings load pydantic, and only their values are needed here
    from rlctl.settings.data import SourceBlock

Split = Literal["train", "eval"]

BIRD = "bird:"
"""Before the folder of a BIRD data set."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a loader is asked for. `name` is the source without its prefix; `eval_size` bounds an evaluation."""

    spec: SourceBlock
    name: str
    split: Split
    seed: int
    eval_size: int
    check: Check | None = None

    @property
    def size(self) -> int:
        """Problems of a set that is made on the spot."""
        return self.spec.num_generated if self.split == "train" else self.eval_size

    @property
    def columns(self) -> Columns:
        return columns_of(self.spec)


def columns_of(spec: SourceBlock) -> Columns:
    database = DatabaseColumns(spec.database_key, spec.database_root, spec.evidence_key) if spec.database_key else None
    return Columns(spec.question_key, spec.answer_key, spec.id_key, spec.extra_keys, database)


Loader = Callable[[Request], Sequence[Problem]]


def load(request: Request) -> Sequence[Problem]:
    """The problems of a source. Raises DataError that says what to set instead."""
    source = request.spec.source
    if not is_on_hub(source) and (request.spec.where or request.spec.match or request.spec.dedupe):
        raise DataError(
            f"data.source = {source!r} has no rows to look at, so data.where, data.match and data.dedupe cannot choose "
            "among them.",
            hint="data.options says which problems such a source makes.",
        )
    for prefix, loader in LOADERS.items():
        if source.startswith(prefix):
            return loader(replace(request, name=source.removeprefix(prefix)))
    return _from_hub(request)


def is_on_hub(source: str) -> bool:
    """Whether a source is a data set of the hub, which has splits of its own."""
    return not source.startswith(tuple(LOADERS))


def missing(source: str) -> str | None:
    """Why a source that needs files of this machine has none; None for every other."""
    folder = Path(source.removeprefix(BIRD)).expanduser()
    return f"no folder {folder}" if source.startswith(BIRD) and not folder.is_dir() else None


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


def _generated(request: Request) -> Sequence[Problem]:
    if request.name not in GENERATORS:
        known = [f"generated:{name}" for name in GENERATORS]
        near = did_you_mean(request.spec.source, known) or f" Known: {', '.join(known)}."
        raise DataError(f"data.source = {request.spec.source!r}: no such generator.{near}")
    return GENERATORS[request.name](request)


def _word_problems(request: Request) -> Sequence[Problem]:
    from rlctl.problems import word_problem

    return LazyProblems(lambda index: word_problem(request.seed, index, split=request.split), size=request.size)


def _text_to_sql(request: Request) -> Sequence[Problem]:
    from rlctl.text_to_sql.questions import text_to_sql_problem

    return LazyProblems(lambda index: text_to_sql_problem(request.seed, index, split=request.split), size=request.size)


def _bird(request: Request) -> Sequence[Problem]:
    from rlctl.text_to_sql.bird import bird_problems

    return bird_problems(request)


GENERATORS: Mapping[str, Loader] = {"word-problems": _word_problems, "text-to-sql": _text_to_sql}
"""Problems that need nothing but rlctl: the name behind `generated:` -> loader."""

LOADERS: Mapping[str, Loader] = {
    "generated:": _generated,
    BIRD: _bird,
    reasoning_gym.PREFIX: reasoning_gym.load,
    verifiers.PREFIX: verifiers.load,
}
"""Prefix of a source -> loader."""


def _from_hub(request: Request) -> list[Problem]:
    """Read through `datasets`: from its cache when the hub cannot be reached, which is found out within seconds."""
    spec = request.spec
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
    hub_split = spec.train_split if request.split == "train" else spec.eval_split
    try:
        table = datasets.load_dataset(spec.source, spec.subset, split=hub_split)
    except (OSError, ValueError) as error:
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{complaint}, subset {spec.subset!r}, split {hub_split!r}: {message}", hint=cure) from error
    where = f"{spec.source}/{hub_split}"
    rows: Iterator[Row] = (Row(number, values) for number, values in enumerate(table, start=1))
    keeps = row_filter(spec.where, spec.match)
    return problems_from(rows, where=where, prefix=where, columns=request.columns, check=request.check, keeps=keeps)
