"""`[tracking]`: who else gets a run's metrics; metrics.jsonl in the run's folder has them always."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveFloat, field_validator, model_validator

from rlctl.presets import did_you_mean
from rlctl.settings.block import Block, Count
from rlctl.trackers.table import TRACKERS, is_custom


class TensorboardSettings(Block):
    dir: str | None = None
    """Folder that gets a folder of event files a run; null is `tensorboard` within the run's own."""


class WandbSettings(Block):
    project: str = "rlctl"
    """Project of the run."""
    entity: str | None = None
    """User or team that the project belongs to; null is the account's default."""
    group: str | None = None
    """Group of the run, for runs that belong together."""
    tags: list[str] = Field([])
    """Tags of the run."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """Send at once, keep in the run's folder for a later `wandb sync`, or neither; null follows WANDB_MODE, else
    online."""


class MlflowSettings(Block):
    tracking_uri: str | None = None
    """Server or store (`https://host`, `sqlite:///mlflow.db`, `file:folder`); null follows MLFLOW_TRACKING_URI, else is
    the SQLite file mlflow.db in run.dir. Credentials belong in MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN."""
    experiment: str = "rlctl"
    """Experiment of the run; made where there is none."""


class TrackioSettings(Block):
    project: str = "rlctl"
    """Project of the run."""
    space_id: str | None = None
    """Space on the hub that gets the metrics, `owner/name`; null keeps them on this machine, in TRACKIO_DIR."""


class TrackingSettings(Block):
    trackers: list[str] = Field([])
    """Who gets the metrics beside metrics.jsonl: `tensorboard`, `wandb`, `mlflow`, `trackio`, or a class of your own as
    `package.module:Class`."""
    queue_size: Count = 1000
    """Steps that wait for a tracker which is slow; what comes on top of them is dropped, counted and told."""
    finish_timeout_s: PositiveFloat = 30.0
    """Seconds that a tracker has at the end of a run to send what it still holds."""
    tensorboard: TensorboardSettings = TensorboardSettings()
    wandb: WandbSettings = WandbSettings()
    mlflow: MlflowSettings = MlflowSettings()
    trackio: TrackioSettings = TrackioSettings()
    options: dict[str, dict[str, Any]] = Field({})
    """What a tracker of your own is made with: a table of keyword arguments for each `package.module:Class`."""

    @field_validator("trackers")
    @classmethod
    def trackers_are_known(cls, value: list[str]) -> list[str]:
        # Always there, so it may be named like the others.
        names = [name for name in value if name != "jsonl"]
        for name in names:
            if name not in TRACKERS and not is_custom(name):
                known = ", ".join(["jsonl", *TRACKERS])
                raise ValueError(
                    f"names {name!r}, which is neither one of {known} nor package.module:Class."
                    f"{did_you_mean(name, list(TRACKERS))}"
                )
        if len(set(names)) != len(names):
            raise ValueError("names a tracker twice")
        return names

    @model_validator(mode="after")
    def options_are_for_trackers_of_ones_own(self) -> TrackingSettings:
        for name in self.options:
            if name in TRACKERS:
                raise ValueError(f"tracking.options has a table for {name}, whose settings are [tracking.{name}]")
            if name not in self.trackers:
                raise ValueError(f"tracking.options has a table for {name}, which tracking.trackers does not name")
        return self
