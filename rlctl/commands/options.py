"""Options that several commands share, and the settings they make."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.completion import names

if TYPE_CHECKING:  # pydantic is loaded only by a command that runs
    from rlctl.config import Loaded
    from rlctl.layers import Layer

Preset = Annotated[
    str,
    typer.Option("--preset", "-p", help="Preset by name, or the path of a .toml file.", autocompletion=names.presets),
]
Variant = Annotated[
    str | None,
    typer.Option(
        "--variant",
        help="Variant of the preset; without it the first that fits this machine.",
        autocompletion=names.variants,
    ),
]
Config = Annotated[str | None, typer.Option("--config", "-c", help="TOML file of settings laid over the preset.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="One setting, as trainer.lr=5e-7; may be repeated. `rlctl config show` lists all, `config schema` says "
        "what they mean.",
        autocompletion=names.assignments,
    ),
]
BackendName = Annotated[
    str | None,
    typer.Option(
        "--backend", "-b", help="Backend to run on; `rlctl plugins` lists them.", autocompletion=names.backends
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print errors and the final result only; the files have everything.")
]
Attach = Annotated[
    str | None,
    typer.Option(
        "--attach", metavar="SESSION", help="With --backend http: take up a session whose driver died, model loaded."
    ),
]
Queue = Annotated[
    bool, typer.Option("--queue", help="With --backend http: wait in line while somebody else holds the server.")
]


def of_http(*, attach: str | None, queue: bool) -> dict[str, tuple[str, Any]]:
    """Options that are settings of the http backend, for `load_settings`."""
    return {
        "remote_backend.http.attach": ("--attach", attach),
        "remote_backend.http.queue": ("--queue", queue or None),
    }


def must_fit_backend(loaded: Loaded, given: Mapping[str, tuple[str, Any]]) -> None:
    """Raises ConfigError for an option of another backend than the run's."""
    from rlctl.errors import ConfigError

    for dotted, (option, value) in given.items():
        of = dotted.split(".")[1]
        if value is not None and loaded.settings.backend != of:
            raise ConfigError(
                f"{option} is an option of the backend {of}, and this run is on {loaded.settings.backend} (from "
                f"{loaded.origins['backend']}).",
                hint=f"add --backend {of}, or leave {option} out.",
            )


def outlive_closed_pipes() -> None:
    """For a command that works on when nobody reads its output any more; the others end, as a shell expects."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def run_dir(assignments: Sequence[str] | None = None, *, config: str | None = None) -> Path:
    """Where runs are (run.dir). Of the assignments that one alone: the rest may make no sense over the defaults."""
    own = [each for each in assignments or () if each.partition("=")[0].strip() == "run.dir"]
    return Path(load_settings(preset=None, config=config, assignments=own).settings.run.dir).expanduser()


def load_settings(
    *,
    preset: str | None,
    variant: str | None = None,
    config: str | None = None,
    assignments: Sequence[str] | None = None,
    options: Mapping[str, tuple[str, Any]] | None = None,
    base: Layer | None = None,
) -> Loaded:
    """Settings from what was typed; options that were not typed (None) are left out."""
    from rlctl.config import load

    typed = {dotted: (option, value) for dotted, (option, value) in (options or {}).items() if value is not None}
    return load(preset=preset, variant=variant, config=config, assignments=assignments or (), options=typed, base=base)
