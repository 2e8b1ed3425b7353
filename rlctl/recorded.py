"""Read back the completions that a run has kept in its samples.jsonl."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from rlctl.data import LazyProblems
from rlctl.errors import ConfigError
from rlctl.rewards.check import Sample
from rlctl.types import Problem

Known = Callable[[str], Problem | None]
"""The problem of an id."""


def samples_of(run: str, *, run_dir: str, problems: Sequence[Problem]) -> list[Sample]:
    """The recorded completions of a run, given by its folder or its name in `run_dir`.

    A problem that is among `problems` by its id is taken from there, whole; another is made of what was recorded.
    Raises ConfigError when there are none, or a line cannot be read.
    """
    path = samples_file(run, run_dir=run_dir)
    known = _made_on_the_spot(problems) if isinstance(problems, LazyProblems) else {p.id: p for p in problems}.get
    samples = [
        _sample(line, known, where=f"{path}:{number}")
        for number, line in enumerate(path.read_bytes().split(b"\n"), start=1)
        if line.strip()
    ]
    if not samples:
        raise ConfigError(f"{path} holds no completions.", hint="set run.samples_per_step; each step leaves some.")
    return samples


def samples_file(run: str, *, run_dir: str) -> Path:
    """Where a run keeps its completions. Raises ConfigError, with the runs that there are."""
    places = [Path(run), Path(run) / "samples.jsonl", Path(run_dir).expanduser() / run / "samples.jsonl"]
    for place in places:
        if place.is_file():
            return place
    parent = Path(run_dir).expanduser()
    runs = sorted(one.parent.name for one in parent.glob("*/samples.jsonl"))
    there = f"runs in {parent}: {', '.join(runs[-5:])}" if runs else f"there is no run in {parent}"
    raise ConfigError(f"no run {run!r}: neither a folder with samples.jsonl nor a name in {parent}.", hint=f"{there}.")


def _made_on_the_spot(problems: LazyProblems) -> Known:
    """Such problems end their ids in their place, so that none has to be made in vain."""

    def known(name: str) -> Problem | None:
        place = name.rpartition("/")[2]
        found = problems[int(place)] if place.isdecimal() and int(place) < len(problems) else None
        return found if found is not None and found.id == name else None

    return known


def _sample(line: bytes, known: Known, *, where: str) -> Sample:
    try:
        record = json.loads(line)
        name, completion = record["problem"], record["completion"]
        scores = {key: float(value) for key, value in record["scores"].items() if value is not None}
        recorded = Problem(name, record["question"], record["answer"])
        if not all(isinstance(text, str) for text in (name, completion, recorded.question, recorded.answer)):
            raise TypeError("a field is not text")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{where} is no recorded completion: {type(error).__name__}: {error}.") from error
    return Sample(known(name) or recorded, completion, scores)
