"""trackio: metrics on this machine, or in a space on the hub.

trackio tells runs apart by their name, so a piece of rlctl's id follows it; steps cannot be taken back.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlctl.trackers.base import State, TrackedRun

if TYPE_CHECKING:  # the settings load pydantic
    from rlctl.settings.tracking import TrackioSettings


class TrackioTracker:
    """A trackio run whose steps are rlctl's."""

    def __init__(self, settings: TrackioSettings, *, run_dir: str) -> None:
        self.settings = settings
        self.run: Any = None

    def start(self, run: TrackedRun) -> int:
        import trackio

        _keep_stdout_clean()
        self.run = trackio.init(
            project=self.settings.project,
            name=f"{run.name}-{run.id[:6]}",
            space_id=self.settings.space_id,
            config={name: value for name, value in run.parameters.items() if not name.startswith("_")},
            resume="allow",
            embed=False,
        )
        # What was on its way when a run was killed is lost: trackio's own count of steps knows.
        next_step = getattr(self.run, "_next_step", None)
        return next_step - 1 if isinstance(next_step, int) else run.sent

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log(dict(metrics), step=step)

    def finish(self, state: State) -> None:
        # trackio knows no state of a run.
        self.run.finish()


def _keep_stdout_clean() -> None:
    """trackio tells its progress with `print`, and has no switch for it: its modules get one that writes to stderr."""
    for name in ("trackio", "trackio.run", "trackio.utils"):
        module: Any = sys.modules.get(name)
        if module is not None:
            module.print = _print_to_stderr


def _print_to_stderr(*words: object, **options: Any) -> None:
    options["file"] = sys.stderr
    print(*words, **options)  # noqa: T201
