"""Read a data set in BIRD's layout: `{split}.json`, `{split}_databases/{db_id}/{db_id}.sqlite`, descriptions as CSV.

`data.source = "bird:FOLDER"` looks for `train.json` and `dev.json` in FOLDER or in its folders `train` and `dev`, as
the archives unpack. Rows are `{question, evidence, SQL, db_id}`. Training takes train, evaluation dev.
Source of the layout: https://bird-bench.github.io/
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlctl.data_files import Columns, DatabaseColumns, problems_from, read_rows
from rlctl.errors import DataError
from rlctl.sources import Request
from rlctl.types import Problem

SOURCE = "bird"
"""What metrics call it: `val-core/bird/...`."""

FILES = {"train": ("train.json",), "eval": ("dev.json", "test.json")}


def bird_problems(request: Request) -> Sequence[Problem]:
    """The problems of one split, of dev `eval_size` at most. Raises DataError with file and row of what is missing."""
    file = _file(Path(request.name).expanduser(), request.split)
    folder = file.parent / f"{file.stem}_databases"
    if not folder.is_dir():
        raise DataError(f"{folder} is missing: the databases of {file}.", hint="unpack the data set's databases there.")
    columns = Columns("question", "SQL", database=DatabaseColumns("db_id", str(folder), "evidence"))
    read = problems_from(read_rows(file), where=str(file), prefix=SOURCE, columns=columns, check=request.check)
    # Both splits number their rows from 1.
    problems = [replace(problem, id=problem.id.replace(SOURCE, f"{SOURCE}/{file.stem}", 1)) for problem in read]
    if request.split == "train" or len(problems) <= request.eval_size:
        return problems
    chosen = random.Random(f"{SOURCE}/{request.seed}").sample(range(len(problems)), request.eval_size)
    return [problems[index] for index in sorted(chosen)]


def _file(folder: Path, split: str) -> Path:
    places = [base / name for name in FILES[split] for base in (folder, folder / Path(name).stem)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        hint = "give the folder that holds BIRD's train and dev."
        if not folder.is_dir():
            raise DataError(f"data.source = bird:{folder}: there is no such folder.", hint=hint)
        looked = ", ".join(str(place.relative_to(folder)) for place in places)
        there = ", ".join(sorted(one.name for one in folder.iterdir())[:8])
        raise DataError(f"data.source = bird:{folder} has none of {looked}; it holds: {there or 'nothing'}.", hint=hint)
    return found
