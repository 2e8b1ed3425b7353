"""rlctl smoke: a short run of the same loop, a table of its steps, and a verdict with reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rlctl.commands import options

if TYPE_CHECKING:  # loaded only by a command that runs
    from rlctl.config import Loaded
    from rlctl.loop import Outcome
    from rlctl.verdict import Check


SMOKE_STEPS = 6


def smoke(
    steps: Annotated[int | None, typer.Option(min=1, help="Steps to run; 6, unless you set trainer.steps.")] = None,
    preset: options.Preset = "smoke",
    variant: options.Variant = None,
    config: options.Config = None,
    backend: options.BackendName = None,
    assignments: options.Set = None,
    format: Annotated[  # noqa: A002  # the option's name
        Literal["table", "markdown", "json"], typer.Option("--format", "-f", help="How to print the result.")
    ] = "table",
) -> None:
    """Run a few steps, print MFU, loss and score of each, and say whether training works here.

    Reads the preset, its data and its model. Writes no file: the table and the verdict are printed.

    Exit code 0 only when every check of the verdict holds, 4 when one does not.

    Example: rlctl smoke --steps 6 --format markdown
    """
    loaded = _load(steps, preset=preset, variant=variant, config=config, backend=backend, assignments=assignments)
    import asyncio

    from rlctl import display, smoke_table, verdict
    from rlctl.foreign_output import to_stderr
    from rlctl.loop import backend_for, run
    from rlctl.prepare import prepare

    display.tell(loaded.variant_line())
    prepared = prepare(loaded.settings)
    options.outlive_closed_pipes()
    with to_stderr():
        outcome = asyncio.run(
            run(
                prepared,
                backend=backend_for(prepared),
                reporter=display.NotesReporter(),
                files=None,
                keep_reports=True,
                evaluate=False,
            )
        )
    checks = verdict.judge(outcome.reports, outcome.info, wanted_steps=prepared.geometry.steps)
    display.say(smoke_table.render(outcome.metrics, checks, outcome.info, style=format))
    raise typer.Exit(_exit_code(outcome, checks))


def _load(steps: int | None, **sources: Any) -> Loaded:
    """The settings, with SMOKE_STEPS unless the user named a number of steps anywhere."""
    backend = sources.pop("backend")
    always = {
        "backend": ("--backend", backend),
        # The trainer scores the samples on its own before the first update, so that the ratio is a measurement.
        "trainer.old_log_probs": ("rlctl smoke", "always"),
    }
    loaded = options.load_settings(**sources, options={**always, "trainer.steps": ("--steps", steps)})
    if loaded.origins["trainer.steps"].startswith(("preset ", "default")):
        return options.load_settings(**sources, options={**always, "trainer.steps": ("rlctl smoke", SMOKE_STEPS)})
    return loaded


def _exit_code(outcome: Outcome, checks: list[Check]) -> int:
    if outcome.interrupted:
        return outcome.exit_code
    return 0 if all(check.holds for check in checks) else 4
