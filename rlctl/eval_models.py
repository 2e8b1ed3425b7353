"""What `rlctl eval` can be pointed at: a model path, a checkpoint, a run, or the samples of an earlier evaluation.

A run stands for its last checkpoint, and lends its prompt format, rewards and evaluation data, so that what is measured
is what was trained.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rlctl import regular
from rlctl.checkpoints import manifest, shelf
from rlctl.checkpoints.manifest import MANIFEST
from rlctl.errors import ConfigError, DataError
from rlctl.layers import Layer
from rlctl.presets import did_you_mean, find
from rlctl.runfiles import CONFIG

LENT = ("data", "reward", "rollout", "eval", "seed", "model")
"""What a run lends to an evaluation of its checkpoints."""


@dataclass(frozen=True, slots=True)
class Target:
    """A model to load, or samples that are there already; `lent` are the settings of its run."""

    name: str
    model: str | None
    samples: Path | None = None
    lent: Layer | None = None


def target(text: str, *, run_dir: Path | None = None) -> Target:
    """What a person named, a run by its folder or its name in `run_dir`.

    Raises ConfigError for a run without a checkpoint, or samples that are not there."""
    path = Path(text).expanduser()
    if run_dir is not None and not path.exists() and (run_dir / text / CONFIG).is_file():
        path = run_dir / text
    samples = path / "samples.jsonl" if (path / "evaluation.json").is_file() else path
    if samples.suffix == ".jsonl":
        if not samples.is_file():
            raise DataError(f"{text}: no such file.", hint="name a model, a run, or the folder of an evaluation.")
        return Target(text, None, samples=samples)
    if (path / CONFIG).is_file():
        return Target(text, str(_last_checkpoint(path)), lent=lent(path))
    run = path.resolve().parent.parent
    if (path / MANIFEST).is_file():
        manifest.verify(path)
    if path.parent.name == "checkpoints" and (run / CONFIG).is_file():
        return Target(text, text, lent=lent(run))
    _must_not_be_a_misspelt_run(text, path)
    return Target(text, text)


def _must_not_be_a_misspelt_run(text: str, path: Path) -> None:
    """Raises ConfigError for what is not there but would stand among runs: a model of the hub it can hardly be."""
    if path.exists() or len(path.parts) < 2 or not path.parent.is_dir():
        return
    runs = sorted(file.parent.name for file in path.parent.glob(f"*/{CONFIG}"))
    if runs:
        raise ConfigError(
            f"{text}: there is no such run in {path.parent}.{did_you_mean(path.name, runs)}",
            hint=f"runs there: {', '.join(runs[-5:])}.",
        )


def _last_checkpoint(run: Path) -> Path:
    found = shelf.latest(run / "checkpoints")
    if found.held is None:
        complaints = "".join(f"\n{complaint}" for complaint in found.complaints)
        raise ConfigError(
            f"the run {run} has no good checkpoint.{complaints}", hint="it was stopped before its first one."
        )
    return found.held.folder


def lent(run: Path) -> Layer:
    """The settings of a run that decide what its completions were asked and are worth. Raises ConfigError."""
    file = run / CONFIG
    try:
        settings = json.loads(regular.read_bytes(file))["settings"]
        taken = {key: settings[key] for key in LENT if key in settings}
        taken["model"] = {key: taken["model"][key] for key in ("tokenizer", "chat_template")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is not the settings of a run: {type(error).__name__}: {error}.") from error
    return Layer(str(file), taken, {})


def preset_layer(name: str) -> Layer:
    """A preset's own settings, without any variant of it: a variant is made for a machine and a model to train."""
    preset = find(name)
    return Layer(f"preset {preset.name}", dict(preset.settings), {})
