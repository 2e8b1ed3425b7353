"""`rlctl plugins`: every backend that can be asked for, and every plugin that failed to register one."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:  # registry is imported when the command runs: `rlctl --help` must stay light
    from rlctl.backends.registry import PluginRecord


def plugins(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the traceback of a plugin that failed.")
    ] = False,
    format: Annotated[Literal["table", "json"], typer.Option(help="How to print the result.")] = "table",  # noqa: A002
) -> None:
    """List the backends, what plugins bring beside them, where each comes from, and the plugins that failed.

    Importing a plugin runs its registration only; `rlctl check-backend NAME` looks at the backend itself.
    A plugin that fails is a line here and hurts no other backend, so the exit code is 0.

    Reads the entry points of installed packages and RLCTL_PLUGINS. Writes nothing.

    Example: rlctl plugins
    """
    from rlctl.backends import registry

    records = [*registry.plugins(), *_algorithms()]
    if format == "json":
        _print_json(records)
    else:
        _print_table(records, verbose=verbose)


def _algorithms() -> list[PluginRecord]:
    """Estimators and losses that are not rlctl's own."""
    from rlctl.algorithms import estimators, losses
    from rlctl.backends.registry import PluginRecord

    return [
        PluginRecord(f"{kind.kind} {name}", origin, None, error.message if error else None)
        for kind in (estimators.registry, losses.registry)
        for name, origin, error in kind.foreign()
    ]


def _print_json(records: list[PluginRecord]) -> None:
    typer.echo(json.dumps([dataclasses.asdict(record) for record in records], indent=2, allow_nan=False))


def _print_table(records: list[PluginRecord], *, verbose: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("name", "origin", "version", "state"):
        table.add_column(column, overflow="fold")
    for record in records:
        state = "registered" if record.error is None else "failed"
        table.add_row(record.name, record.origin, record.version or "n/a", state)
    Console(highlight=False, markup=False).print(table)
    for record in records:
        if record.error is not None:
            typer.echo(f"\n{record.name} ({record.origin}): {record.error}")
            typer.echo(record.traceback if verbose else "hint: --verbose shows the traceback.")
