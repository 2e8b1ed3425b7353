"""rlctl train: sample, score, update, sync, evaluate, checkpoint, until the last step; or on from where a run was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.commands import options

if TYPE_CHECKING:  # loaded only by a command that runs
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rlctl.config import Loaded
    from rlctl.prepare import Prepared
    from rlctl.resuming import Resume
    from rlctl.runfiles import RunFiles
    from rlctl.settings import Settings
    from rlctl.trackers.base import Tracker


def train(
    preset: options.Preset = "gsm8k-grpo",
    variant: options.Variant = None,
    config: options.Config = None,
    backend: options.BackendName = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the run (trainer.steps).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run and of its folder in run.dir.")] = None,
    assignments: options.Set = None,
    attach: options.Attach = None,
    queue: options.Queue = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check settings, data, rewards and model files, print what a run would do, train nothing."
        ),
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a policy with GRPO; in the folder of a run that has a checkpoint, go on after it (run.resume).

    Reads the preset, its data and its model. Writes run.dir/NAME: settings, machine, metrics, samples, checkpoints.
    Prints a line a step, or a live table on a terminal.

    Exit codes: 0 done; 1 a reward fails on everything; 2 settings, data or model cannot be used; 3 the backend is not
    there; 4 the run failed; 75 trainer.save_before; 129, 130, 143 a signal, and the run is saved.

    Example: rlctl train --preset gsm8k-grpo --variant embedded --steps 20
    """
    of_http = options.of_http(attach=attach, queue=queue)
    loaded = options.load_settings(
        preset=preset,
        variant=variant,
        config=config,
        assignments=assignments,
        options={
            "backend": ("--backend", backend),
            "trainer.steps": ("--steps", steps),
            "seed": ("--seed", seed),
            "run.name": ("--name", name),
            **of_http,
        },
    )
    options.must_fit_backend(loaded, of_http)
    start(loaded, dry_run=dry_run, quiet=quiet)


def start(loaded: Loaded, *, dry_run: bool = False, quiet: bool = False, first_line: str | None = None) -> None:
    """Train with these settings and exit; `rlctl resume` comes here too. `first_line` says where they are from."""
    from rlctl.display import say
    from rlctl.prepare import prepare
    from rlctl.runfiles import run_folder
    from rlctl.trackers.loading import load as load_trackers

    # Before any reward of the user's is imported: it could change the working folder.
    folder = run_folder(loaded.settings.run.dir, loaded.settings.run.name, preset=_preset_name(loaded))
    _must_be_there(loaded.settings, folder)
    tell = _teller(quiet=quiet)
    (say if dry_run else tell)(first_line or loaded.variant_line())
    trackers = load_trackers(loaded.settings.tracking, run_dir=loaded.settings.run.dir)
    prepared = prepare(loaded.settings)
    if dry_run:
        _print_plan(prepared, [*loaded.notes(), *prepared.notes])
        return
    for note in loaded.notes():
        tell(f"note: {note}")
    raise typer.Exit(_train(loaded, prepared, folder, trackers, quiet=quiet))


def _teller(*, quiet: bool) -> Callable[[str], None]:
    """Where what is said beside the result goes: to stderr, or nowhere."""
    from rlctl.display import tell

    return (lambda text: None) if quiet else tell


def _must_be_there(settings: Settings, folder: Path) -> None:
    from rlctl.errors import ConfigError

    if settings.run.resume == "must" and not folder.is_dir():
        raise ConfigError(
            f"run.resume = must, and there is no run {folder} to go on with.",
            hint="--name gives the run's name; `rlctl resume RUN` takes its folder.",
        )


def _print_plan(prepared: Prepared, notes: list[str]) -> None:
    from rlctl.algorithms.words import algorithm_line
    from rlctl.display import say
    from rlctl.loop import backend_for

    settings, names = prepared.settings, [reward.name for reward in prepared.rewards.rewards]
    backend_for(prepared)
    say(f"model: {prepared.model}; backend: {settings.backend}; rewards: {', '.join(names)}")
    for line in (algorithm_line(settings), *prepared.geometry.lines(), *(f"note: {note}" for note in notes)):
        say(line)
    say("dry run: settings, rewards, data and model files checked; no device was touched, nothing trained")


def _train(loaded: Loaded, prepared: Prepared, folder: Path, trackers: Mapping[str, Tracker], *, quiet: bool) -> int:
    """Run, and return the exit code."""
    import asyncio

    from rlctl import display, runlock
    from rlctl.loop import backend_for, run
    from rlctl.runfiles import told_ending
    from rlctl.stopping import leave_soon
    from rlctl.trackers.following import following

    options.outlive_closed_pipes()
    backend = backend_for(prepared)
    tell = _teller(quiet=quiet)
    with runlock.held(folder, note=tell):
        files, resume = _opened(loaded, prepared, folder, tell=tell)
        tell(f"run: {display.shown_path(folder)}")
        tracking = loaded.settings.tracking
        with (
            # Not before: a run that is refused leaves what the folder says of the one before it.
            told_ending(folder) as ended,
            display.reporting(quiet=quiet, title=folder.name, history=_done_before(files, resume)) as reporter,
            following(trackers, files, settings=tracking, note=reporter.note, leave=leave_soon) as followed,
        ):
            outcome = asyncio.run(run(prepared, backend=backend, reporter=reporter, files=files, resume=resume))
            ended(outcome.exit_code)
            followed.ended(outcome.exit_code)
        for line in display.summary_lines(outcome, prepared):
            display.say(line)
    return outcome.exit_code


def _done_before(files: RunFiles, resume: Resume | None) -> list[Mapping[str, Any]]:
    """The metrics of the steps that were done in earlier lives; the last line may still wait for its evaluation."""
    owed = resume.state.owed if resume else None
    return [*files.records, *([owed] if owed else [])]


def _opened(
    loaded: Loaded, prepared: Prepared, folder: Path, *, tell: Callable[[str], None]
) -> tuple[RunFiles, Resume | None]:
    """The run's files and, where it goes on, from where. Raises ConfigError or CheckpointError where it cannot."""
    from rlctl import resuming
    from rlctl.algorithms.words import effective
    from rlctl.checkpoints.state import versions, with_first_origins
    from rlctl.config import dump

    plan = resuming.plan(folder, prepared)
    for line in plan.lines:
        tell(line)
    config = {
        "preset": _preset_name(loaded),
        "variant": loaded.choice.variant.name if loaded.choice.variant else None,
        "total_steps": prepared.geometry.steps,
        "algorithm": effective(loaded.settings),
        "versions": versions(),
        "settings": dump(loaded.settings),
        "origins": dict(loaded.origins),
    }
    return plan.open(folder, config=with_first_origins(folder, config), note=tell), plan.resume


def _preset_name(loaded: Loaded) -> str | None:
    return loaded.preset.name if loaded.preset else None
