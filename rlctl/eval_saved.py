"""An earlier evaluation, read back to be compared: its scores, its problems, and how they were sampled.

Two models that were asked other questions, or sampled in another way, differ by that as well, and no test can tell the
two apart: what is known to differ is refused before anything is sampled, and told where both are sampled already.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.errors import ConfigError, DataError
from rlctl.runs.printable import printable
from rlctl.types import Problem

if TYPE_CHECKING:  # the settings load pydantic, and only the type is needed here
    from rlctl.settings import Settings

Scores = Mapping[str, Mapping[str, float]]
"""Source -> problem id -> mean score of the task."""

OPTIONS = {"n": "--n", "temperature": "--temperature", "max_response_length": "--set rollout.max_response_length="}
"""How completions were sampled, and what on the command line makes it so."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One side of a comparison: the problems by (source, id), and what is known of how they were sampled."""

    name: str
    problems: Mapping[tuple[str, str], tuple[str, str]]
    """(question, gold answer) of each."""
    sampling: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Saved:
    """An evaluation that is there already."""

    asked: Asked
    scores: Scores


def sampling_of(settings: Settings) -> dict[str, float]:
    """What `evaluation.json` keeps of how an evaluation samples."""
    sampling = settings.evaluation()
    return {
        "n": settings.eval.n,
        "temperature": sampling.temperature,
        "max_response_length": sampling.max_new_tokens,
    }


def to_ask(name: str, settings: Settings, problems: Sequence[Problem]) -> Asked:
    """An evaluation that is still to be made."""
    texts = {(one.source or "data", one.id): (one.question, one.answer) for one in problems}
    return Asked(name, texts, sampling_of(settings))


def read(samples: Path) -> Saved:
    """The evaluation in a file of samples. Raises DataError: a line that is none, several models, no score."""
    found: dict[str, dict[str, list[float]]] = {}
    texts: dict[tuple[str, str], tuple[str, str]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    models: dict[str, None] = {}
    for number, line in enumerate(_lines(samples), start=1):
        record, score = _scored(line, f"{samples}:{number}")
        source, problem = str(record["source"]), str(record["problem"])
        models[str(record.get("model"))] = None
        texts[source, problem] = (str(record.get("question", "")), str(record.get("answer", "")))
        counts[source, problem] += 1
        if score is not None:
            found.setdefault(source, {}).setdefault(problem, []).append(score)
    if len(models) > 1:
        named = ", ".join(printable(name, one_line=True) for name in models)
        raise DataError(f"{samples} has the samples of {len(models)} models: {named}.", hint="evaluate one by itself.")
    if not found:
        raise DataError(f"{samples} has no sample with a score.")
    means = {source: {name: sum(some) / len(some) for name, some in own.items()} for source, own in found.items()}
    known = {"n": max(counts.values()), **_recorded(samples.parent / "evaluation.json", model=next(iter(models)))}
    return Saved(Asked(str(samples), texts, known), means)


def _lines(samples: Path) -> list[str]:
    try:
        # Not splitlines: a completion may hold other separators of lines.
        return samples.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{samples} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def _scored(line: str, where: str) -> tuple[Mapping[str, Any], float | None]:
    """(one sample, the score of its task); None where the reward failed."""
    try:
        record: Any = json.loads(line)
        score = record["scores"].get(record["task"])
        _ = record["source"], record["problem"]
        if score is not None and not math.isfinite(score):
            raise ValueError(f"the score {score}")
        return record, None if score is None else float(score)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DataError(f"{where}: not a sample of `rlctl eval`: {type(error).__name__}: {error}.") from error


def _recorded(file: Path, *, model: str) -> dict[str, float]:
    """How a model was sampled, by what stands beside its samples; nothing where that is gone, or of an older rlctl."""
    try:
        own = [one for one in json.loads(file.read_text(encoding="utf-8"))["evaluations"] if one["model"] == model]
        known = own[0]["sampling"]
        return {name: float(known[name]) for name in OPTIONS if name in known}
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError, OverflowError):
        return {}


def must_be_comparable(first: Asked, second: Asked) -> None:
    """Raises DataError where the two have no problem in common, or other ones under the same name."""
    shared = first.problems.keys() & second.problems.keys()
    if not shared:
        raise DataError(
            f"{first.name} and {second.name} have no problem in common.",
            hint="evaluate both on the same data: --data FILE",
        )
    other = sorted(key for key in shared if first.problems[key] != second.problems[key])
    if other:
        source, name = other[0]
        raise DataError(
            f"{first.name} and {second.name} have other questions or answers under the same name: {len(other)} of "
            f"{len(shared)}, the first {printable(f'{source} {name}', one_line=True)}.",
            hint="evaluate both on the same data: --data FILE",
        )


def must_be_sampled_alike(saved: Asked, planned: Asked) -> None:
    """Raises ConfigError where the model would be sampled otherwise than the evaluation it is compared with was."""
    if told := _apart(saved, planned):
        wanted = " ".join(_typed(name, saved.sampling[name]) for name in _differing(saved, planned))
        raise ConfigError(
            f"{told}: what differs would not be the models alone.",
            hint=f"add {wanted}; to compare ways of sampling, evaluate both and compare the two folders.",
        )


def notes_on(first: Asked, second: Asked) -> list[str]:
    """What a reader of the comparison of two earlier evaluations must know."""
    told = _apart(first, second)
    unknown = [one.name for one in (first, second) if any(name not in one.sampling for name in OPTIONS)]
    notes = [f"{told}: what differs is not the models alone"] if told else []
    return notes + [f"how {name} was sampled is not recorded beside it" for name in unknown]


def _differing(first: Asked, second: Asked) -> list[str]:
    both = [name for name in OPTIONS if name in first.sampling and name in second.sampling]
    return [name for name in both if first.sampling[name] != second.sampling[name]]


def _apart(first: Asked, second: Asked) -> str:
    names = _differing(first, second)
    words = [", ".join(f"{name} {one.sampling[name]:g}" for name in names) for one in (first, second)]
    return f"{first.name} is sampled with {words[0]}, {second.name} with {words[1]}" if names else ""


def _typed(name: str, value: float) -> str:
    option = OPTIONS[name]
    return f"{option}{'' if option.endswith('=') else ' '}{value:g}"
