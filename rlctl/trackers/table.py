"""The trackers that rlctl brings, by name; nothing of theirs is imported here."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tracker is, and the package it stands for."""

    reference: str
    package: str
    extra: str


TRACKERS = {
    "tensorboard": Entry("rlctl.trackers.tensorboard:TensorboardTracker", "tensorboard", "tensorboard"),
    "wandb": Entry("rlctl.trackers.wandb:WandbTracker", "wandb", "wandb"),
    "mlflow": Entry("rlctl.trackers.mlflow:MlflowTracker", "mlflow", "mlflow"),
    "trackio": Entry("rlctl.trackers.trackio:TrackioTracker", "trackio", "trackio"),
}


def is_custom(name: str) -> bool:
    """Whether the name has the form `package.module:Class`."""
    return re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", name) is not None
