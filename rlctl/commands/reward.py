"""rlctl reward: try the rewards of a run on texts whose worth is known, before a run depends on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rlctl.commands import options

if TYPE_CHECKING:  # loaded only by a command that runs
    from rlctl.rewards.check import RewardReport
    from rlctl.settings import Settings

app = typer.Typer(help="Try the rewards of a run.", rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def reward() -> None:
    """Try the rewards of a run."""


@app.command()
def check(
    preset: options.Preset = "gsm8k-grpo",
    variant: options.Variant = None,
    config: options.Config = None,
    assignments: options.Set = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Problems to try the rewards with.")] = 64,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN", help="Score the completions that this run kept, too: its name or folder."),
    ] = None,
    format: Annotated[  # noqa: A002  # the option's name
        Literal["table", "json"], typer.Option("--format", "-f", help="How to print the result.")
    ] = "table",
) -> None:
    """Score right, wrong, empty, cut, long and hostile texts; print what they get and how long a call takes.

    Exit code 0 when all is well, 1 when gold answers do not get full marks, wrong ones do, or a text gets no score.
    """
    loaded = options.load_settings(preset=preset, variant=variant, config=config, assignments=assignments)
    import contextlib
    import sys

    from rlctl import display, reward_table

    display.tell(loaded.variant_line())
    # A reward that prints must not get into the result.
    with contextlib.redirect_stdout(sys.stderr):
        reports = _reports(loaded.settings, limit=limit, run=run)
    display.say(reward_table.render(reports, style=format))
    raise typer.Exit(0 if reward_table.passed(reports) else 1)


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
