"""rlctl reward: which rewards are built in, by which rules they grade, and what those of a run say of known texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rlctl.commands import options
from rlctl.completion import names

if TYPE_CHECKING:  # loaded only by a command that runs
    from rlctl.layers import Layer
    from rlctl.rewards.check import RewardReport
    from rlctl.settings import Settings

app = typer.Typer(
    help="List, describe and try rewards.",
    rich_markup_mode=None,
    invoke_without_command=True,
)


@app.callback()
def reward(context: typer.Context) -> None:
    """List, describe and try rewards.

    Reads and writes nothing; the built-in ones are listed.

    Example: rlctl reward
    """
    if context.invoked_subcommand is None:
        from rlctl.rewards.base import BUILT_IN

        for name in sorted(BUILT_IN):
            typer.echo(f"{name}: `rlctl reward describe {name}` prints its rules")
        typer.echo("package.module:function: your own, called with (problem, completion)")
        typer.echo("`rlctl reward check` tries the rewards of a run")


@app.command(short_help="Print the rules of a built-in reward, with examples.")
def describe(
    name: Annotated[str, typer.Argument(help="A built-in reward.", autocompletion=names.rewards)] = "gsm8k",
) -> None:
    """Print what a reward goes by, and grade telling examples, with the rule that each shows.

    Reads and writes nothing. Exit code 2 when there is no such reward.

    Example: rlctl reward describe gsm8k
    """
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


@app.command(short_help="Try the rewards of a run on known texts.")
def check(
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset", "-p", help="Preset, by name or file; a run has its own settings.", autocompletion=names.presets
        ),
    ] = None,
    variant: options.Variant = None,
    config: options.Config = None,
    assignments: options.Set = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Problems to try the rewards with.")] = 64,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Score the completions that this run kept, too: its name or folder.",
            autocompletion=names.runs,
        ),
    ] = None,
    format: Annotated[  # noqa: A002  # the option's name
        Literal["table", "json"], typer.Option("--format", "-f", help="How to print the result.")
    ] = "table",
) -> None:
    """Score right, wrong, empty, cut, long and hostile texts; print what they get and how long a call takes.

    Reads the problems of a run and, with --run, its samples. Writes nothing.
    Exit code 0 when all is well, 1 when gold answers do not get full marks, wrong ones do, or a text gets no score.

    Example: rlctl reward check --preset gsm8k-grpo --variant embedded
    """
    base = _settings_of(run, assignments) if run is not None and preset is None and config is None else None
    loaded = options.load_settings(
        preset=preset or ("gsm8k-grpo" if base is None else None),
        variant=variant,
        config=config,
        assignments=assignments,
        base=base,
    )
    from rlctl import display, reward_table
    from rlctl.foreign_output import to_stderr

    display.tell(loaded.variant_line() if base is None else f"settings of the run {run}")
    with to_stderr():
        reports = _reports(loaded.settings, limit=limit, run=run)
    display.say(reward_table.render(reports, style=format))
    raise typer.Exit(0 if reward_table.passed(reports) else 1)


def _settings_of(run: str, assignments: list[str] | None) -> Layer | None:
    """What a run's completions were asked and are worth, by its own settings; None where only samples are left."""
    from rlctl.eval_models import lent
    from rlctl.recorded import samples_file
    from rlctl.runfiles import CONFIG

    folder = samples_file(run, run_dir=str(options.run_dir(assignments))).parent
    return lent(folder) if (folder / CONFIG).is_file() else None


def _reports(settings: Settings, *, limit: int, run: str | None) -> list[RewardReport]:
    from rlctl import data
    from rlctl.recorded import samples_of
    from rlctl.rewards.check import check_reward
    from rlctl.rewards.golds import finished, spread
    from rlctl.rewards.loading import rewards_of

    rewards = rewards_of(settings.reward)
    try:
        problems = data.load_problems(settings.data, split="train", seed=settings.seed, check=rewards.gold_complaint)
        samples = None if run is None else samples_of(run, run_dir=settings.run.dir, problems=problems)
        chosen = spread(problems, limit)
        return [finished(check_reward(rewards, reward, chosen, samples=samples)) for reward in rewards.rewards]
    finally:
        rewards.close()
