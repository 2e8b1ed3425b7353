"""rlctl data: what a run's data looks like, and what is wrong with it."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rlctl.commands import options

app = typer.Typer(help="Look at a run's data before the run does.", rich_markup_mode=None, no_args_is_help=True)

SHOWN = 20
"""Findings of one kind that are printed; all of them with --format json."""

LAZY_MEASURED = 2000
"""Problems of an endless source that are looked at."""

Format = Annotated[Literal["text", "json"], typer.Option("--format", "-f", help="How to print the result.")]


@app.command()
def lint(
    preset: options.Preset = "gsm8k-grpo",
    variant: options.Variant = None,
    config: options.Config = None,
    assignments: options.Set = None,
    strict: Annotated[bool, typer.Option("--strict", help="Count warnings as errors.")] = False,
    format: Format = "text",  # noqa: A002  # the option's name
) -> None:
    """Find unusable golds, duplicates, train/eval overlap, missing columns, empty questions and given-away answers.

    Reads all problems of a run, of an endless source some. Writes nothing.
    Exit code 0 when there is no error, 1 when there is one (or a warning, with --strict), 2 when nothing can be read.

    Example: rlctl data lint --preset gsm8k-grpo --variant embedded
    """
    loaded = options.load_settings(preset=preset, variant=variant, config=config, assignments=assignments)
    from rlctl.data_report import find, render_findings
    from rlctl.display import say

    findings, num_problems = find(loaded.settings, at_most=LAZY_MEASURED)
    say(render_findings(findings, num_problems=num_problems, style=format, shown=SHOWN))
    bad = [one for one in findings if strict or one.level == "error"]
    raise typer.Exit(1 if bad else 0)


@app.command()
def stats(
    preset: options.Preset = "gsm8k-grpo",
    variant: options.Variant = None,
    config: options.Config = None,
    assignments: options.Set = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE.png", help="Draw prompt lengths (rlctl[plots]).")] = None,
    max_over: Annotated[
        float | None, typer.Option(min=0, max=1, help="Exit with 1 when a larger share of prompts is over the limit.")
    ] = None,
    format: Format = "text",  # noqa: A002
) -> None:
    """Print prompt lengths after the chat template, the share over the limit, sources and distinct questions.

    Reads all problems of a run, of an endless source some, and the tokenizer. Writes nothing but the file of --plot.
    Exit code 1 when more than --max-over of the prompts are over the limit, 2 when nothing can be read.

    Example: rlctl data stats --preset gsm8k-grpo --variant embedded
    """
    loaded = options.load_settings(preset=preset, variant=variant, config=config, assignments=assignments)
    from pathlib import Path

    from rlctl import data_stats
    from rlctl.data_report import measure, render_stats
    from rlctl.display import say, tell

    found = measure(loaded.settings, at_most=LAZY_MEASURED)
    say(render_stats(found, style=format))
    if plot is not None:
        data_stats.plot(found, Path(plot))
        tell(f"plot: {plot}")
    raise typer.Exit(1 if max_over is not None and any(one.lengths.over > max_over for one in found) else 0)
