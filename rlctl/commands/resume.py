"""rlctl resume: go on with a run by its folder or name, with the settings it had and any that are given here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.commands import options
from rlctl.commands.train import start
from rlctl.completion import names

if TYPE_CHECKING:  # loaded only by a command that runs
    from rlctl.layers import Layer


def resume(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run's name in run.dir, its folder, or `latest`.",
            autocompletion=names.runs_and_latest,
        ),
    ],
    config: options.Config = None,
    backend: options.BackendName = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the whole run (trainer.steps).")] = None,
    assignments: options.Set = None,
    attach: options.Attach = None,
    queue: options.Queue = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check all that can be; train nothing.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Go on with a run after its last good checkpoint; settings given here replace its own.

    Reads the run's settings and checkpoints, and what they name. Writes on in the run's folder; lines of its logs that
    are later than the checkpoint come again. Exit codes are those of `rlctl train`.

    Example: rlctl resume runs/mine --steps 80
    """
    of_http = options.of_http(attach=attach, queue=queue)
    folder = _folder(run, options.run_dir(assignments, config=config))
    loaded = options.load_settings(
        preset=None,
        config=config,
        assignments=assignments,
        base=_settings_of(folder),
        options={
            "backend": ("--backend", backend),
            "trainer.steps": ("--steps", steps),
            "run.dir": ("the run's folder", str(folder.parent)),
            "run.name": ("the run's folder", folder.name),
            "run.resume": ("rlctl resume", "must"),
            **of_http,
        },
    )
    options.must_fit_backend(loaded, of_http)
    start(loaded, dry_run=dry_run, quiet=quiet, first_line=f"settings of {folder}")


def _folder(run: str, parent: Path) -> Path:
    from rlctl.errors import ConfigError
    from rlctl.runfiles import CONFIG
    from rlctl.runs.finding import find_run

    folder = find_run(run, parent=parent).absolute()
    if not (folder / CONFIG).is_file():
        raise ConfigError(f"{folder} is not a run to go on with: it has no {CONFIG}.", hint="begin it by rlctl train.")
    return folder


OF_ONE_DRIVER = ("remote_backend", "http", "attach")
"""A session that was taken up once is gone by the next time."""


def _settings_of(folder: Path) -> Layer:
    """The run's settings as a layer; what is secret was never written, and comes from the environment again."""
    from rlctl.checkpoints.state import read_config
    from rlctl.layers import Layer
    from rlctl.runfiles import CONFIG
    from rlctl.settings_tree import field_type, is_secret

    def known(tree: dict[str, Any], above: tuple[str, ...] = ()) -> dict[str, Any]:
        return {
            key: known(value, (*above, key)) if isinstance(value, dict) else value
            for key, value in tree.items()
            if not is_secret(field_type((*above, key))) and (*above, key) != OF_ONE_DRIVER
        }

    return Layer(str(folder / CONFIG), known(read_config(folder / CONFIG)["settings"]), {})
