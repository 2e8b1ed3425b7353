"""A run's metrics as series over its steps: which there are, which a pattern means, thinned out for drawing."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rlctl.errors import ConfigError
from rlctl.presets import did_you_mean
from rlctl.runfiles import STEP
from rlctl.runs.lines import Record, number
from rlctl.runs.reading import Run

MOST_POINTS = 400
"""Points of a curve that are drawn: about one for each pixel of a small plot."""


@dataclass(frozen=True, slots=True)
class Series:
    """A metric over the steps where it is a finite number. `low` and `high` span the steps that a point stands for."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def thinned(self) -> bool:
        return bool(self.low)


def series(records: Iterable[Record], name: str) -> Series:
    found = [(int(record[STEP]), value) for record in records if (value := number(record.get(name))) is not None]
    return Series(name, tuple(step for step, _ in found), tuple(value for _, value in found))


def names_of(records: Iterable[Record]) -> list[str]:
    """Every metric that is a finite number somewhere, in the order of the files; the step itself is none."""
    names: dict[str, None] = {}
    for record in records:
        names |= {name: None for name, value in record.items() if name not in names and number(value) is not None}
    names.pop(STEP, None)
    return list(names)


def matching(patterns: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """The metrics that the names or globs mean, each once. Raises ConfigError for one that means none, and for none."""
    known = list(dict.fromkeys(name for run in runs for name in names_of(run.records)))
    if not patterns:
        raise ConfigError("name the metrics that are wanted.", hint=_choices(known))
    chosen: dict[str, None] = {}
    for pattern in patterns:
        exact = [pattern] if pattern in known else []
        found = exact or [name for name in known if fnmatch.fnmatchcase(name, pattern)]
        if not found:
            raise ConfigError(
                f"no metric {pattern!r} with a number in {', '.join(run.name for run in runs)}."
                f"{did_you_mean(pattern, known)}",
                hint=_choices(known),
            )
        chosen |= dict.fromkeys(found)
    return list(chosen)


def _choices(known: Sequence[str]) -> str:
    if not known:
        return "no step is done yet."
    groups = list(dict.fromkeys(f"{name.split('/')[0]}/*" for name in known))
    return f"globs are taken too: {', '.join(groups)}; docs/metrics.md has the names."


def unbroken(steps: Sequence[int]) -> list[range]:
    """The places of the steps, in parts between which some are missing: steps further apart than is usual for them."""
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    usual = sorted(gaps)[(len(gaps) - 1) // 2] if gaps else 1
    ends = [place + 1 for place, gap in enumerate(gaps) if gap > 1.5 * usual]
    return [range(first, last) for first, last in pairwise([0, *ends, len(steps)])]


def thinned(one: Series, *, most: int = MOST_POINTS) -> Series:
    """At most that many points, each the mean of as many neighbouring steps, with their lowest and highest value."""
    count = len(one.steps)
    if count <= most:
        return one
    ends = [count * part // most for part in range(most + 1)]
    parts = [slice(first, last) for first, last in pairwise(ends)]
    values = [one.values[part] for part in parts]
    return Series(
        one.name,
        steps=tuple(one.steps[part][-1] for part in parts),
        values=tuple(sum(some) / len(some) for some in values),
        low=tuple(map(min, values)),
        high=tuple(map(max, values)),
    )
