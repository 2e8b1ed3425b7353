"""rlctl presets: which presets there are, and what one of them says."""

from __future__ import annotations

from typing import Annotated

import typer

from rlctl.completion import names

app = typer.Typer(help="List presets, or show one.", rich_markup_mode=None, invoke_without_command=True)


@app.callback()
def presets(context: typer.Context) -> None:
    """List presets, or show one.

    Reads the presets that ship with rlctl. Writes nothing.

    Example: rlctl presets
    """
    if context.invoked_subcommand is None:
        _list()


def _list() -> None:
    from rlctl.presets import available, read

    for name, path in available().items():
        preset = read(path)
        typer.echo(f"{name}: {preset.summary}")
        for variant in preset.variants:
            only = " (only by name)" if variant.by_name_only else ""
            typer.echo(f"  --variant {variant.name}{only}: {variant.summary}")


@app.command(short_help="Print the file of a preset.")
def show(
    name: Annotated[
        str, typer.Argument(help="Preset by name, or the path of a .toml file.", autocompletion=names.presets)
    ],
) -> None:
    """Print the preset's file: save it, change it, and give it to --preset.

    Reads that file. Writes nothing. Exit code 2 when there is no such preset.

    Example: rlctl presets show gsm8k-grpo
    """
    from rlctl.presets import find

    typer.echo(find(name).path.read_text(encoding="utf-8"), nl=False)
