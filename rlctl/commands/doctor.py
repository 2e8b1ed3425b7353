"""`rlctl doctor`: whether this machine and what is installed on it can run rlctl, and what to do where not."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rlctl.commands import options

RUN_DIR = "runs"
"""Where runs go unless run.dir says otherwise; the settings, which load pydantic, may be what is broken here."""


def doctor(
    backend: options.BackendName = None,
    run_dir: Annotated[
        str | None, typer.Option(help="Folder of the runs to look at (run.dir); RLCTL_RUN__DIR or ./runs.")
    ] = None,
    format: Annotated[  # noqa: A002  # the option's name
        Literal["table", "json", "markdown"], typer.Option("--format", "-f", help="How to print the result.")
    ] = "table",
) -> None:
    """Look at Python, packages, GPUs, processor, memory, disks and the network; say what is wrong, and the cure.

    With --backend, also at what that backend needs. Exit code 3 when a check fails, else 0; warnings are 0.

    Reads what the system tells of itself; no model is loaded, at most one request is sent (none with HF_HUB_OFFLINE=1).
    Writes nothing.

    Example: rlctl doctor --backend ray --format markdown
    """
    import os
    import shutil

    from rlctl.doctor import gathering, judging, printing, versions
    from rlctl.doctor.lines import exit_code

    known = versions.read()
    folder = run_dir or os.environ.get("RLCTL_RUN__DIR") or RUN_DIR
    lines = judging.judge(gathering.gather(known, run_dir=folder, backend=backend), known)
    if format == "json":
        typer.echo(printing.as_json(lines))
    elif format == "markdown":
        typer.echo(printing.markdown(lines))
    else:
        typer.echo(printing.table(lines, width=min(shutil.get_terminal_size((80, 24)).columns, 120)))
    raise typer.Exit(exit_code(lines))
