"""rlctl config: every setting with its value and origin, the schema of them all, and configs of other tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rlctl.commands import options
from rlctl.commands.config_import import import_
from rlctl.completion import names
from rlctl.toml_text import key_text, value_text

if TYPE_CHECKING:  # pydantic is loaded only by a command that runs
    from rlctl.config import Loaded

app = typer.Typer(
    help="Show settings and where they come from; import those of other tools.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.command("import", short_help="Translate a config of TRL, verl or OpenRLHF.")(import_)


@app.command()
def show(
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset", "-p", help="Preset by name, or the path of a .toml file.", autocompletion=names.presets
        ),
    ] = None,
    variant: options.Variant = None,
    config: options.Config = None,
    backend: options.BackendName = None,
    assignments: options.Set = None,
    format: Annotated[Literal["toml", "json"], typer.Option("--format", "-f", help="How to print.")] = "toml",  # noqa: A002
) -> None:
    """Print every setting with its value and where it came from. Without --preset: the defaults and the environment.

    Reads the preset, --config and RLCTL_ variables. Writes nothing; what it prints is a file for --config. Secrets stay
    hidden. Exit code 2 when a setting is unknown or wrong.

    Example: rlctl config show --preset gsm8k-grpo --set trainer.lr=2e-6
    """
    loaded = options.load_settings(
        preset=preset,
        variant=variant,
        config=config,
        assignments=assignments,
        options={"backend": ("--backend", backend)},
    )
    typer.echo(_as_json(loaded) if format == "json" else "\n".join(_as_toml(loaded)))


def _as_json(loaded: Loaded) -> str:
    from rlctl.config import dump

    return json.dumps(
        {
            "preset": loaded.preset.name if loaded.preset else None,
            "variant": loaded.choice.variant.name if loaded.choice.variant else None,
            "settings": dump(loaded.settings),
            "origins": dict(loaded.origins),
        },
        indent=2,
        ensure_ascii=False,
    )


def _as_toml(loaded: Loaded) -> Iterator[str]:
    from rlctl.config import dump

    yield f"# {loaded.variant_line()}"
    yield from _table(dump(loaded.settings), (), loaded.origins)


def _table(tree: Mapping[str, Any], above: tuple[str, ...], origins: Mapping[str, str]) -> Iterator[str]:
    """The values of a table, then its tables. TOML has no null: one that is the default is a comment, others "null"."""
    values = {key: value for key, value in tree.items() if not isinstance(value, dict) or not value}
    tables = {key: value for key, value in tree.items() if isinstance(value, dict) and value}
    if above and values:
        yield ""
        yield f"[{'.'.join(map(key_text, above))}]"
    for key, value in values.items():
        origin = origins.get(".".join((*above, key)), "default")
        hidden = "# " if value is None and origin == "default" else ""
        line = f"{hidden}{key_text(key)} = {'null' if hidden else value_text(value)}"
        yield f"{line}  # {origin}" if origin != "default" else line
    for key, value in tables.items():
        yield from _table(value, (*above, key), origins)


@app.command()
def schema() -> None:
    """Print the JSON Schema of all settings, with their meaning; installed backends' tables are included.

    Reads the settings classes of rlctl and of every backend. Writes nothing.

    Example: rlctl config schema
    """
    from rlctl.settings_tree import json_schema

    typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
