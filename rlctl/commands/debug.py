"""rlctl debug: look into what went wrong in a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # loaded only by a command that runs
    from rlctl.dumps import Dump
    from rlctl.replay import Replayed
    from rlctl.settings import Settings

app = typer.Typer(help="Look into what went wrong in a run.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _debug() -> None:
    """Look into what went wrong in a run."""


@app.command()
def replay(
    dump: Annotated[Path, typer.Argument(metavar="DUMP", help="Folder in RUN/dumps/.")],
    text: Annotated[bool, typer.Option("--text", help="Print prompt and completion of each row too.")] = False,
) -> None:
    """Compute an update whose loss or gradient was not finite again, with its own weights, row by row.

    Reads the dump: its rows, and the weights that they met. Writes nothing.
    Exit code 0 when it came out as it did in the run, 4 when everything is finite now.

    Example: rlctl debug replay runs/mine/dumps/step_000012 --text
    """
    import asyncio

    from rlctl import dumps
    from rlctl.display import say
    from rlctl.prepare import load_policy
    from rlctl.recipe import backend_for
    from rlctl.replay import replay as compute
    from rlctl.replay import settings_of

    read = dumps.read(dump)
    settings = settings_of(read)
    policy = load_policy(settings)
    backend = backend_for(_Ready(settings, policy.model, policy.end_token_ids))
    whole, *rows = asyncio.run(compute(read, backend=backend, settings=settings))
    say("\n".join(_lines(read, whole, rows)))
    if text:
        for number, row in enumerate(read.refused.rows):
            say(f"row {number} prompt: {policy.tokenizer.decode(row.prompt_ids)!r}")
            say(f"row {number} completion: {policy.tokenizer.decode(row.completion_ids)!r}")
    raise typer.Exit(4 if all(result.finite for result in (whole, *rows)) else 0)


def _lines(dump: Dump, whole: Replayed, rows: list[Replayed]) -> list[str]:
    then = f"loss {dump.refused.loss:g}, gradient norm {dump.refused.grad_norm:g}"
    now = f"loss {whole.loss:g}, gradient norm {whole.grad_norm:g}"
    lines = [f"step {dump.step}, update {dump.refused.update}: {then} in the run; {now} here", ""]
    for result, row in zip(rows, dump.refused.rows, strict=True):
        written = "" if row.policy_mask is None else f" ({row.trained_tokens} the policy's)"
        sizes = f"{len(row.prompt_ids)} + {len(row.completion_ids)} tokens{written}, advantage {row.advantage:g}"
        mark = "" if result.finite else "   <- not finite"
        lines.append(f"row {result.row}: {sizes}: loss {result.loss:g}, gradient norm {result.grad_norm:g}{mark}")
    return lines


@dataclass(frozen=True)
class _Ready:
    """What a backend is made from."""

    settings: Settings
    model: str
    end_token_ids: tuple[int, ...]
