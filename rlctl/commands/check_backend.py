"""`rlctl check-backend NAME`: which methods are coroutines, how a run calls each, and whether it could start."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rlctl.commands import check_tables, options
from rlctl.completion import names

if TYPE_CHECKING:  # probe is imported when the command runs: `rlctl --help` must stay light
    from rlctl.backends.probe import Report, Trial

DRIFT = 3
"""Exit code when what was found is not what the lock holds."""


def check_backend(
    name: Annotated[
        str, typer.Argument(help="Backend to check; `rlctl plugins` lists them.", autocompletion=names.backends)
    ],
    client: Annotated[
        str | None,
        typer.Option(metavar="MODULE:CLASS", help="Judge this client alone, in place of the one registered."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Also start the backend on a tiny job and put it through its verbs, timed.")
    ] = False,
    write_lock: Annotated[
        Path | None, typer.Option("--write-lock", metavar="FILE", help="Pin what was found in this file.")
    ] = None,
    lock: Annotated[
        Path | None,
        typer.Option("--lock", metavar="FILE", help="Compare with a pinned file; exit code 3 on any difference."),
    ] = None,
    config: options.Config = None,
    assignments: options.Set = None,
    format: Annotated[  # noqa: A002  # the option's name
        Literal["table", "json", "markdown"], typer.Option("--format", "-f", help="How to print the result.")
    ] = "table",
) -> None:
    """Say how a run would call each method of a backend, and whether it could start.

    Exits with 0 only when a run could start, with 1 when a finding stops it, and with 3 when the backend is not
    installed or differs from the --lock. With --client, only that client decides. --config and --set are the
    settings that --live starts the backend with.

    Reads the backend's classes or source, and the --lock. Writes nothing but the file of --write-lock.

    Example: rlctl check-backend local
    """
    from rlctl.backends import probe, registry
    from rlctl.backends.probe.lock import drift
    from rlctl.backends.probe.lock import write_lock as write

    _refuse_combinations(client, live=live, settings=bool(config or assignments))
    if client is not None:
        # As `python -m` does: a client under development is found where its author stands.
        sys.path.insert(0, str(Path.cwd()))
    report = probe.check(registry.get(name), client=client)
    changes = drift(lock, report) if lock is not None else []
    if live and report.can_run:
        report = dataclasses.replace(report, trial=_trial(name, config=config, assignments=assignments))
    if write_lock is not None:
        write(write_lock, report)
    _print(report, changes, style=format, subject="a run" if client is None else "a run with this client")
    raise typer.Exit(code=DRIFT if changes else 0 if report.can_run else 1)


def _refuse_combinations(client: str | None, *, live: bool, settings: bool) -> None:
    from rlctl.errors import ConfigError

    if live and client is not None:
        raise ConfigError("--live starts a backend, which takes its own client.", hint="leave out --client or --live.")
    if settings and not live:
        raise ConfigError("--config and --set are settings for --live.", hint="add --live, or leave them out.")


def _trial(name: str, *, config: str | None, assignments: list[str] | None) -> Trial:
    import asyncio

    from rlctl.backends import registry
    from rlctl.backends.probe.trial import run_trial
    from rlctl.foreign_output import to_stderr

    chosen = {"backend": ("NAME", name)}
    settings = options.load_settings(preset="smoke", config=config, assignments=assignments, options=chosen).settings
    own = settings.local if name == "local" else settings.remote_backend[name]
    backend = registry.get(name).load("backend")
    with to_stderr():
        return asyncio.run(run_trial(lambda job: backend(own, job)))


def _print(report: Report, changes: list[str], *, style: str, subject: str) -> None:
    if style == "json":
        fields = {**dataclasses.asdict(report), "can_run": report.can_run, "stopping": report.stopping}
        typer.echo(json.dumps({**fields, "drift": changes}, indent=2, allow_nan=False))
        return
    lines = check_tables.markdown(report) if style == "markdown" else check_tables.table(report)
    for line in lines:
        typer.echo(line)
    for change in changes:
        typer.echo(f"differs from the lock: {change}")
    typer.echo(f"{subject} {_verdict(num_stopping=len(report.stopping))}")


def _verdict(*, num_stopping: int) -> str:
    if num_stopping == 0:
        return "could start"
    return f"cannot start: {num_stopping} {'finding stops' if num_stopping == 1 else 'findings stop'} it"
