"""`rlctl check-backend NAME`: which methods are coroutines, how a run calls each, and whether it could start."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:  # probe is imported when the command runs: `rlctl --help` must stay light
    from rlctl.backends.probe import Finding, PartReport, Report


def check_backend(
    name: Annotated[str, typer.Argument(help="Backend to check; `rlctl plugins` lists them.")],
    client: Annotated[
        str | None,
        typer.Option(metavar="MODULE:CLASS", help="Judge this client alone, in place of the one registered."),
    ] = None,
    format: Annotated[Literal["table", "json"], typer.Option(help="How to print the result.")] = "table",  # noqa: A002
) -> None:
    """Say how a run would call each method of a backend, and whether it could start.

    Exits with 0 only when a run could start, with 1 when a finding stops it, and with 3 when the backend is not
    installed. With --client, only that client decides.
    """
    from rlctl.backends import probe, registry

    if client is not None:
        # As `python -m` does: a client under development is found where its author stands.
        sys.path.insert(0, str(Path.cwd()))
    report = probe.check(registry.get(name), client=client)
    if format == "json":
        _print_json(report)
    else:
        _print_table(report, subject="a run" if client is None else "a run with this client")
    if not report.can_run:
        raise typer.Exit(code=1)


def _print_json(report: Report) -> None:
    fields = {**dataclasses.asdict(report), "can_run": report.can_run, "stopping": report.stopping}
    typer.echo(json.dumps(fields, indent=2, allow_nan=False))


def _print_table(report: Report, *, subject: str) -> None:
    for part in report.parts:
        typer.echo(f"{report.backend} {part.part}: {part.target} ({part.kind})")
        typer.echo(part.read)
        _print_methods(part)
        for line in _lines(part):
            typer.echo(line)
        typer.echo("")
    for finding in report.findings:
        typer.echo(_line(finding))
    typer.echo(f"{subject} {_verdict(num_stopping=len(report.stopping))}")


def _print_methods(part: PartReport) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("method", "expected", "found", "called"):
        table.add_column(column, overflow="fold")
    for method in part.methods:
        table.add_row(method.name, method.expected, method.found, method.call)
    Console(highlight=False, markup=False).print(table)


def _lines(part: PartReport) -> list[str]:
    """Findings and notes, one a line and never wrapped, so that they can be searched."""
    whole = [_line(finding) for finding in part.findings]
    findings = [f"{method.name}: {_line(finding)}" for method in part.methods for finding in method.findings]
    notes = [f"{method.name}: note: {method.note}" for method in part.methods if method.note]
    return [*whole, *findings, *notes]


def _line(finding: Finding) -> str:
    return f"{finding.text} (stops a run)" if finding.stops else finding.text


def _verdict(*, num_stopping: int) -> str:
    if num_stopping == 0:
        return "could start"
    return f"cannot start: {num_stopping} {'finding stops' if num_stopping == 1 else 'findings stop'} it"
