"""What the driver itself keeps in a checkpoint, beside what the backend keeps of model and optimizer.

There is little of it. The learning rate is a function of the step, and every draw one of (seed, step, problem, sample,
position) (`seeds.py`), so neither has a state. What has: where the data stands, the curriculum, the weight of KL where
it is steered, a few counts, and the global generators of Python, numpy and torch, which rlctl does not draw from but a
reward or a backend of others may.
"""

from __future__ import annotations

import base64
import json
import platform
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl import __version__, regular
from rlctl.errors import CheckpointError

if TYPE_CHECKING:  # it loads numpy, which `rlctl runs` does without
    from rlctl.pipeline import Drawn

STATE = "run_state.json"
CONFIG = "run_config.json"
"""In a checkpoint: the settings of its run, and versions."""


@dataclass(frozen=True, slots=True)
class RunState:
    """Where a run stands after a step.

    `best` is {"metric", "value", "step"} of `trainer.keep_best`; `owed` are the metrics of the step, when a signal cut
    off the evaluation that belongs to them.
    """

    step: int
    total_steps: int
    learning_rate: float
    data: Mapping[str, Any]
    problems: Mapping[str, str]
    """Source -> what its problems are, as one digest: a run goes on with the data it began with."""
    skipped_in_a_row: int = 0
    rollbacks: int = 0
    kl_coef: float | None = None
    """The weight that KL off the reward has in the next step; None where nothing steers it."""
    best: Mapping[str, Any] | None = None
    random: Mapping[str, Any] = field(default_factory=dict)
    owed: Mapping[str, Any] | None = None
    ahead: Sequence[Drawn] = ()
    """Batches of later steps that are drawn already; `data` is where it stood before them. In a file of their own."""

    def text(self) -> bytes:
        state = asdict(replace(self, ahead=()))
        del state["ahead"]
        return (json.dumps(state, allow_nan=False) + "\n").encode()


def read_state(folder: Path) -> RunState:
    """The state in a checkpoint, without what is ahead, which is large (`ahead.py`).

    Raises CheckpointError when it is not one of this version's.
    """
    try:
        return RunState(**json.loads(regular.read_bytes(folder / STATE)))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{folder / STATE} is not the state of a run: {error}.") from error


def read_config(file: Path) -> dict[str, Any]:
    """The settings of a run, in its folder or in a checkpoint. Raises CheckpointError."""
    try:
        config = json.loads(regular.read_bytes(file))
        if not isinstance(config["settings"], dict):
            raise TypeError("settings is not a table")
        return dict(config)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{file} does not hold the settings of a run: {error}.") from error


def with_first_origins(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What a run writes down of its settings; for those that it takes from its own folder, where these had come from.

    So a run that was resumed still tells its preset, and which settings were given on the command line that began it.
    """
    file = folder / "config.resolved.json"
    try:
        before = read_config(file)
        first = dict(before["origins"])
    except (CheckpointError, KeyError, TypeError, ValueError):
        return config
    taken = {name: first.get(name, origin) for name, origin in config["origins"].items() if origin == str(file)}
    if not taken:
        return config
    origins = {**config["origins"], **taken}
    return {**config, "preset": before.get("preset"), "variant": before.get("variant"), "origins": origins}


def versions() -> dict[str, str]:
    """Of what a result may depend on; a package that is not installed is left out."""
    found = {"rlctl": __version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "tokenizers", "safetensors", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def seed_generators(seed: int) -> None:
    """Begin the global generators, so that a reward or a backend that draws from them draws the same in every run."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


def capture_generators() -> dict[str, Any]:
    """The states of the global generators, as plain data; torch's where torch is loaded."""
    version, numbers, gauss = random.getstate()
    states: dict[str, Any] = {"python": [version, list(numbers), gauss]}
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        states["numpy"] = [name, keys.tolist(), int(position), int(has_gauss), float(cached)]
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = base64.b64encode(bytes(torch.get_rng_state().tolist())).decode()
    return states


def restore_generators(states: Mapping[str, Any]) -> None:
    """Raises CheckpointError when they are not what `capture_generators` gives."""
    try:
        if "python" in states:
            version, numbers, gauss = states["python"]
            random.setstate((version, tuple(numbers), gauss))
        if "numpy" in states and (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.set_state(tuple(states["numpy"]))
        if "torch" in states and (torch := sys.modules.get("torch")) is not None:
            numbers = list(base64.b64decode(states["torch"]))
            torch.set_rng_state(torch.tensor(numbers, dtype=torch.uint8))
    except (ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"the random state in the checkpoint is damaged: {error}.") from error
