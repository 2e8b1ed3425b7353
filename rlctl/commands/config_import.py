"""rlctl config import: the config of another tool as rlctl's settings, with every difference."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rlctl.completion import names
from rlctl.errors import ConfigError
from rlctl.printable import printable

if TYPE_CHECKING:  # yaml and pydantic are loaded only when the command runs
    from rlctl.peers.findings import Translation

Format = Literal["table", "markdown", "json"]

WIDEST = 120
"""Columns beyond which lines of prose are hard to read."""


def import_(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="YAML, TOML, JSON, a launch script (.sh), one argument a line (.txt), Python with one "
            "GRPOConfig(...), or - for standard input. Nothing in it is run.",
        ),
    ],
    peer: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="trl|verl|openrlhf",
            help="Whose config it is; without it, found out.",
            autocompletion=names.peers,
        ),
    ] = None,
    peer_version: Annotated[
        str | None,
        typer.Option("--peer-version", metavar="V", help="Version whose defaults hold for what the file leaves out."),
    ] = None,
    num_devices: Annotated[
        int | None, typer.Option("--num-devices", min=1, help="Devices of the run, where the file does not say it.")
    ] = None,
    variables: Annotated[
        list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help="A variable of the file; may be repeated.")
    ] = None,
    rewards: Annotated[
        list[str] | None,
        typer.Option("--reward", metavar="NAME", help="rlctl's reward for the peer's, as gsm8k; may be repeated."),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the TOML there, not to stdout.")
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write the differences there, not to stderr.")
    ] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to tell the differences.")] = "table",  # noqa: A002
    whole: Annotated[bool, typer.Option("--all", help="Also write what equals rlctl's defaults.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
) -> None:
    """Translate a config of TRL, verl or OpenRLHF, and tell every difference in meaning or default.

    Reads FILE. Writes the TOML to stdout or -o FILE, the differences to stderr, grouped: translated exactly; with a
    change of meaning; a default of the peer that rlctl does not share; without a counterpart; unknown; refused or
    contradictory; not known from the file. Each setting of the file is accounted for once. A value that only running
    could tell is named and left out.

    Exit codes: 0 when nothing was left behind that changes the result; 1 when something was (the TOML is written all
    the same); 2 when the file is no config of these tools.

    Example: rlctl config import run_grpo.sh --from verl --num-devices 8 -o mine.toml
    """
    from rlctl.peers import writing
    from rlctl.peers.reading import read
    from rlctl.peers.translate import translate

    targets = _targets(file, {"--output": output, "--report": report}, force=force)
    source = read(file, variables=_pairs(variables or []))
    made = translate(source, peer=peer, version=peer_version, devices=num_devices, whole=whole, rewards=rewards or ())
    text = writing.toml(made)
    _must_load(text)
    _tell(made, targets.get("--report"), format=format)
    if "--output" in targets:
        _write(targets["--output"], text)
    else:
        typer.echo(text, nl=False)
    if made.changes_the_result:
        raise typer.Exit(1)


def _pairs(assignments: list[str]) -> dict[str, str]:
    pairs = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"--var {assignment} is not NAME=VALUE.", hint="write --var HOME=/home/me.")
        pairs[name] = value
    return pairs


def _targets(file: str, named: dict[str, str | None], *, force: bool) -> dict[str, Path]:
    """The files to write, checked before any work. Raises ConfigError where one is there, or is the input."""
    targets = {option: Path(name) for option, name in named.items() if name is not None}
    for option, path in targets.items():
        if path.is_dir() or not path.parent.is_dir():
            raise ConfigError(f"{option} {path}: {'is a folder' if path.is_dir() else 'its folder is not there'}.")
        if file != "-" and path.exists() and Path(file).exists() and path.samefile(file):
            raise ConfigError(f"{option} {path} is the file to translate.", hint="name another.")
        if path.exists() and not force:
            raise ConfigError(f"{option} {path} is there already.", hint="name another file, or add --force.")
    if len({path.absolute() for path in targets.values()}) < len(targets):
        raise ConfigError("--output and --report name the same file.")
    return targets


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}.") from None


def _must_load(text: str) -> None:
    """What is handed over is what `--config` takes: read it back through rlctl's own settings."""
    from rlctl.config import load

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "imported.toml")
        path.write_text(text, encoding="utf-8")
        load(config=str(path), environ={})


def _tell(made: Translation, path: Path | None, *, format: Format) -> None:  # noqa: A002
    from rlctl.peers import reports

    if format == "json":
        told = reports.as_json(made)
    elif format == "markdown":
        told = reports.markdown(made)
    else:
        told = reports.table(made, width=min(shutil.get_terminal_size().columns, WIDEST))
    if path is not None:
        _write(path, told)
        told = reports.summary(made) + "\n"
    sys.stderr.write(printable(told))
