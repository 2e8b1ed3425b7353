"""Rates measured now: a few steps of the run itself, on this machine, and nothing kept of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlctl.errors import ConfigError
from rlctl.planning.device import Machine
from rlctl.planning.rates import Rates, of_steps

if TYPE_CHECKING:  # the settings load pydantic, and only the type is needed here
    from rlctl.settings import Settings

STEPS = 3
"""Of which the first does not count."""


def measured(settings: Settings, machine: Machine) -> Rates:
    """The rates of a short run with these settings. Raises ConfigError where the plan is for another machine."""
    if not machine.is_this:
        raise ConfigError(
            "--measure runs on this machine, and the plan is for another.",
            hint="measure there, and give the folder of that run with --run.",
        )
    import asyncio

    from rlctl.display import NotesReporter
    from rlctl.foreign_output import to_stderr
    from rlctl.loop import backend_for, run
    from rlctl.planning.fitting import with_settings
    from rlctl.prepare import prepare

    prepared = prepare(with_settings(settings, {"trainer.steps": STEPS}))
    with to_stderr():
        work = run(prepared, backend=backend_for(prepared), reporter=NotesReporter(), files=None, evaluate=False)
        outcome = asyncio.run(work)
    if not outcome.metrics:
        raise ConfigError("--measure: the run ended before its first step.")
    return of_steps(outcome.metrics, source="measured now")
