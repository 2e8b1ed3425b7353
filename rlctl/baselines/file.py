"""The file of a baseline: JSON with the runs it was made of, and for people the bands their figures lie in.

A file is written whole or not at all. One that is cut short, edited into nonsense or of another version is refused with
what is wrong and where.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rlctl import durable
from rlctl.baselines.record import Record, Step
from rlctl.errors import ConfigError

FORMAT = 3
"""Of the file and of the reference work: a number in one means nothing in another."""
WARMUP = 2
"""First steps that nothing is judged by: they touch memory, build kernels and fill caches."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Runs of one recipe on one machine, each in a process of its own."""

    runs: tuple[Record, ...]

    @property
    def key(self) -> Mapping[str, Any]:
        return self.runs[0].key

    @property
    def recipe(self) -> Mapping[str, Any]:
        return self.runs[0].recipe

    @property
    def num_steps(self) -> int:
        return min(len(run.steps) for run in self.runs)


def must_be_writable(path: Path) -> None:
    """Before any second of compute. Raises ConfigError where the file cannot be written, or stands there already."""
    try:
        if path.exists():
            raise ConfigError(
                f"--write-baseline {path}: {'a folder' if path.is_dir() else 'a file'} of that name is there already.",
                hint="remove it, or write another.",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.with_name(f".{path.name}.probe")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error


def write(path: Path, baseline: Baseline) -> None:
    """Raises ConfigError when it cannot be written."""
    runs = [{"steps": run.tree()["steps"]} for run in baseline.runs]
    tree = {"rlctl_baseline": FORMAT, "key": baseline.key, "recipe": baseline.recipe, "bands": bands(baseline.runs)}
    text = json.dumps({**tree, "runs": runs}, indent=1, allow_nan=False)
    try:
        durable.replace(path, (text + "\n").encode())
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"--write-baseline {path} cannot be written: {error.strerror or error}.", hint="name another file."
    )


FIGURES = ("mfu", "tflops", "tokens_per_s", "score", "loss", "grad_norm", "flops_update", "sampled_tokens")


def bands(runs: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Least, median and greatest of each figure over the steps after the warm-up, of all runs."""
    steps = [step for run in runs for step in run.steps[WARMUP:]]
    found = {name: [v for step in steps if (v := getattr(step, name)) is not None] for name in FIGURES}
    return {
        name: {"least": min(values), "median": median(values), "greatest": max(values)}
        for name, values in found.items()
        if values
    }


def read(path: Path) -> Baseline:
    """Raises ConfigError, with what is wrong, when that is no baseline that can be used."""
    tree = _tree(path)
    if "rlctl_baseline" not in tree:
        raise _damaged(path, "it has no `rlctl_baseline`")
    if tree["rlctl_baseline"] != FORMAT:
        raise ConfigError(
            f"--baseline {path} is of format {tree['rlctl_baseline']!r}; this rlctl reads format {FORMAT}.",
            hint="write it again with --write-baseline, on the code that it is to stand for.",
        )
    key, recipe, runs = (
        _part(path, tree, name, kind) for name, kind in (("key", dict), ("recipe", dict), ("runs", list))
    )
    if len(runs) < 2:
        raise _damaged(path, f"it holds {len(runs)} runs where at least 2 are needed")
    return Baseline(tuple(Record(key, recipe, _steps(path, run, number)) for number, run in enumerate(runs, start=1)))


def record_from(path: Path, tree: Mapping[str, Any]) -> Record:
    """A single run as `Record.tree` gave it, from the file `path`."""
    return Record(tree["key"], tree["recipe"], _steps(path, tree, 1) if tree["steps"] else ())


def _tree(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"--baseline {path}: no such file.", hint="write one with --write-baseline FILE.") from error
    except OSError as error:
        raise ConfigError(f"--baseline {path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is not JSON ({str(error).splitlines()[0][:80]})") from error
    if not isinstance(tree, dict):
        raise _damaged(path, f"it is a {type(tree).__name__}")
    return tree


def _part(path: Path, tree: Mapping[str, Any], name: str, kind: type) -> Any:
    value = tree.get(name)
    if not isinstance(value, kind) or not value:
        raise _damaged(path, f"its `{name}` is {'missing' if value is None else 'not what it should be'}")
    return value


def _steps(path: Path, run: Any, number: int) -> tuple[Step, ...]:
    listed = run.get("steps") if isinstance(run, dict) else None
    if not isinstance(listed, list) or not listed:
        raise _damaged(path, f"its run {number} has no steps")
    return tuple(_step(path, values, f"step {place} of run {number}") for place, values in enumerate(listed, start=1))


OPTIONAL = ("flops_update", "flops_sampling", "score", "loss", "grad_norm", "mfu", "tflops", "tokens_per_s")


def _step(path: Path, values: Any, place: str) -> Step:
    if not isinstance(values, dict) or set(values) != set(Step.__slots__):
        raise _damaged(path, f"{place} lacks a figure or has one too many")
    wrong = [name for name in ("step", "prompt_tokens", "sampled_tokens") if not _is_number(values[name])]
    wrong += [name for name in OPTIONAL if values[name] is not None and not _is_number(values[name])]
    wrong += [name for name in ("seconds", "wall", "scores") if not _is_table(values[name])]
    if not isinstance(values["reference"], dict) or not all(map(_are_readings, values["reference"].values())):
        wrong.append("reference")
    if wrong:
        raise _damaged(path, f"{wrong[0]} of {place} is {str(values[wrong[0]])[:40]!r}")
    return Step(**{**values, "reference": {phase: tuple(of) for phase, of in values["reference"].items()}})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0


def _are_readings(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_number(number) and number > 0 for number in value)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_number(number) for number in value.values())


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(f"--baseline {path} is no baseline of rlctl, or is damaged: {why}.", hint="write it again.")
