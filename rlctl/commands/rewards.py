"""rlctl rewards: which rewards are built in, and by which rules they grade."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    help="List the built-in rewards, or describe one.", rich_markup_mode=None, invoke_without_command=True
)


@app.callback()
def rewards(context: typer.Context) -> None:
    """List the built-in rewards, or describe one."""
    if context.invoked_subcommand is None:
        from rlctl.rewards.base import BUILT_IN

        for name in sorted(BUILT_IN):
            typer.echo(f"{name}: `rlctl rewards describe {name}` prints its rules")
        typer.echo("package.module:function: your own, called with (problem, completion)")
        typer.echo("`rlctl reward check` tries the rewards of a run")


@app.command()
def describe(name: Annotated[str, typer.Argument(help="A built-in reward.")] = "gsm8k") -> None:
    """Print what a reward goes by, and grade telling examples, with the rule that each shows."""
    if name == "sql":
        _describe_sql()
        return
    import importlib
    import inspect

    from rlctl.errors import ConfigError
    from rlctl.presets import did_you_mean
    from rlctl.rewards.base import BUILT_IN
    from rlctl.rewards.examples import BY_NAME
    from rlctl.rewards.math import grade_gsm8k

    if name not in BUILT_IN:
        raise ConfigError(f"no built-in reward is called {name!r}.{did_you_mean(name, BUILT_IN)}")
    if name not in BY_NAME:
        typer.echo(inspect.getdoc(importlib.import_module(BUILT_IN[name].partition(":")[0])))
    for example in BY_NAME.get(name, ()):
        grade = grade_gsm8k(example.completion, example.gold, allow_last_number=example.allow_last_number)
        typer.echo(f"{grade.score:.0f}  gold {example.gold!r:16} {example.completion!r:28} {example.rule}")


def _describe_sql() -> None:
    from rlctl.rewards.sql.examples import EXAMPLES, TABLE, graded

    typer.echo(f"bird strict  on {TABLE}")
    for example, (bird, strict) in zip(EXAMPLES, graded(), strict=True):
        typer.echo(f"{bird:4.1f} {strict:6.1f}  gold {example.gold!r:30} {example.completion!r:60} {example.rule}")
