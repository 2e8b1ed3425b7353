"""rlctl completion: the script by which a shell asks what a word can become."""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the completion script of a shell: commands, options, presets, variants, backends, runs and settings.

    Reads nothing. Writes nothing either: where a script belongs is told at its top, and no file of yours is edited.

    Example: rlctl completion bash
    """
    from rlctl.completion.answering import script

    typer.echo(script(shell), nl=False)
