"""What made a gradient not finite, on disk: `RUN/dumps/step_000012/` holds all that is needed to compute it again.

rows.npz      the minibatch: tokens, advantages, log-probs
dump.json     settings, step, learning rate, loss as it came out
weights/      the model and optimizer as they were: the update was not taken
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl import durable, regular
from rlctl.errors import ConfigError
from rlctl.step_report import Refused
from rlctl.types import TrainRow

ROWS, INFO, WEIGHTS = "rows.npz", "dump.json", "weights"
MOST = 3
"""Dumps of one run: each holds a whole model, and the first ones say what there is to say."""

_ARRAYS = (
    "prompt_ids", "completion_ids", "rollout_logprobs", "old_logprobs", "ref_logprobs", "token_advantages", "selected",
    "policy_mask",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dump:
    """A refused update, with what is needed to compute it again."""

    folder: Path
    step: int
    refused: Refused
    settings: Mapping[str, Any]

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS


def write(folder: Path, *, step: int, refused: Refused, settings: Mapping[str, Any]) -> None:
    """Write all but the weights. Raises OSError."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{name}_{i}": array
        for i, row in enumerate(refused.rows)
        for name in _ARRAYS
        if (array := getattr(row, name)) is not None
    }
    with (folder / ROWS).open("wb") as stream:
        np.savez(stream, advantages=np.array([row.advantage for row in refused.rows]), **arrays)
    info = {
        "step": step,
        "update": refused.update,
        "loss_denominator": refused.loss_denominator,
        "loss": _text(refused.loss),
        "grad_norm": _text(refused.grad_norm),
        "settings": dict(settings),
    }
    durable.write(folder / INFO, (json.dumps(info, indent=2, allow_nan=False) + "\n").encode())


def read(folder: Path) -> Dump:
    """Raises ConfigError when the folder is no dump."""
    import numpy as np

    try:
        info = json.loads(regular.read_bytes(folder / INFO))
        with regular.open_rb(folder / ROWS) as stream, np.load(stream) as stored:
            arrays = dict(stored)
        rows = [_row(arrays, i, float(a)) for i, a in enumerate(arrays["advantages"])]
        refused = Refused(info["update"], rows, info["loss_denominator"], float(info["loss"]), float(info["grad_norm"]))
        return Dump(folder, info["step"], refused, info["settings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder} is not a dump of a run: {type(error).__name__}: {error}.",
            hint="a run writes them to RUN/dumps/ when a gradient is not finite.",
        ) from error


def _row(arrays: Mapping[str, Any], number: int, advantage: float) -> TrainRow:
    parts: dict[str, Any] = {name: arrays.get(f"{name}_{number}") for name in _ARRAYS}
    return TrainRow(advantage=advantage, **parts)


def _text(number: float) -> str | float:
    """JSON has no word for what is not finite; float() reads these."""
    return number if math.isfinite(number) else str(number)


def folder_of(dumps: Path, step: int) -> Path | None:
    """Where the dump of a step goes; None once there are enough."""
    held: Sequence[Path] = sorted(dumps.glob("step_*")) if dumps.is_dir() else []
    folder = dumps / f"step_{step:06d}"
    return folder if folder in held or len(held) < MOST else None
