"""rlctl plan: what a run will need, on this machine or on another, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rlctl.commands import options
from rlctl.completion import names

if TYPE_CHECKING:  # loaded only by a command that runs
    from rlctl.planning.plan import Plan
    from rlctl.planning.rates import Rates
    from rlctl.planning.work import Lengths
    from rlctl.settings import Settings

PIPE_COLUMNS = 120
"""Width of a table that goes into a file."""


def plan(
    preset: options.Preset = "gsm8k-grpo",
    variant: options.Variant = None,
    config: options.Config = None,
    backend: options.BackendName = None,
    assignments: options.Set = None,
    device: Annotated[
        str, typer.Option(help="The run's device by its name on a data sheet, as H100; cpu. Default: this machine's.")
    ] = "",
    gpu_memory_gb: Annotated[
        float | None, typer.Option(min=0.001, help="Memory of one GPU in GiB, of another machine than this.")
    ] = None,
    num_gpus: Annotated[int | None, typer.Option(min=1, help="GPUs that the run may use.")] = None,
    memory_gb: Annotated[
        float | None, typer.Option(min=0.001, help="Memory of the machine around them, or of a cpu, in GiB.")
    ] = None,
    peak_tflops: Annotated[
        float | None, typer.Option(min=0.001, help="Peak of one device, for a device in no data sheet.")
    ] = None,
    prompt_tokens: Annotated[
        float | None, typer.Option(min=1, help="Mean tokens of a prompt; default: data.max_prompt_length.")
    ] = None,
    response_tokens: Annotated[
        float | None, typer.Option(min=1, help="Mean tokens of a completion; default: rollout.max_response_length.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            help="An earlier run, by name, folder or `latest`, whose measured rates and lengths are taken.",
            autocompletion=names.runs_and_latest,
        ),
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure rates by three steps here and now.")] = False,
    mfu: Annotated[
        float | None, typer.Option(min=0.0001, max=1, help="MFU of the update, 0..1, if you know one.")
    ] = None,
    sampled_tokens_per_s: Annotated[
        float | None, typer.Option(min=0.001, help="Sampling rate over all devices, if you know one.")
    ] = None,
    format: Annotated[  # noqa: A002  # the option's name
        Literal["table", "markdown", "json"], typer.Option("--format", "-f", help="How to print the plan.")
    ] = "table",
) -> None:
    """Plan a run: tokens, FLOPs, time and memory of a step, for this machine or one that you describe.

    Reads the preset and, of the model, config.json alone: no weights are loaded. Writes nothing. Exit code 4 when the
    run does not fit; then the cheapest change with which it does is named.

    Example: rlctl plan --preset gsm8k-grpo --variant gpu --backend ray --device H100 --num-gpus 1
    """
    loaded = options.load_settings(
        preset=preset,
        variant=variant,
        config=config,
        assignments=assignments,
        options={"backend": ("--backend", backend)},
    )
    from rlctl.display import say, tell
    from rlctl.planning import fitting, rates, table
    from rlctl.planning.device import Wanted
    from rlctl.planning.plan import notes_of, plan_of
    from rlctl.runs.finding import find_run

    tell(loaded.variant_line())
    settings = loaded.settings
    _one_source(run=run, measure=measure, mfu=mfu, sampled_tokens_per_s=sampled_tokens_per_s)
    earlier = find_run(run, parent=Path(settings.run.dir).expanduser()) if run is not None else None
    of_run = rates.of_run(earlier) if earlier is not None else None
    lengths = _lengths(settings, prompt=prompt_tokens, response=response_tokens, of_run=of_run)
    wanted = Wanted(device, gpu_memory_gb, num_gpus, memory_gb, peak_tflops)
    made = plan_of(settings, wanted, lengths=lengths)
    found = of_run or _rates(settings, made, measure=measure, mfu=mfu, sampled_tokens_per_s=sampled_tokens_per_s)
    seconds = rates.seconds_of(made.work, made.flops, found)
    cure = fitting.cheapest_cure(settings, made) if fitting.fits(made.places) is False else None
    notes = [*loaded.notes(), *notes_of(settings, made)]
    notes += rates.other_circumstances(earlier, model=made.model, machine=made.machine) if earlier is not None else []
    say(table.render(made, rates=found, seconds=seconds, cure=cure, notes=notes, style=format, width=_width()))
    raise typer.Exit(4 if fitting.fits(made.places) is False else 0)


def _one_source(*, run: str | None, measure: bool, mfu: float | None, sampled_tokens_per_s: float | None) -> None:
    from rlctl.errors import ConfigError

    given = mfu is not None or sampled_tokens_per_s is not None
    named = [
        name
        for name, said in (
            ("--run", run is not None),
            ("--measure", measure),
            ("--mfu or --sampled-tokens-per-s", given),
        )
        if said
    ]
    if len(named) > 1:
        raise ConfigError(f"rates come from one source, not from {' and '.join(named)}.", hint="leave all but one out.")


def _lengths(
    settings: Settings, *, prompt: float | None, response: float | None, of_run: Rates | None
) -> Lengths | None:
    """What was typed, else what the run measured, else None. Raises ConfigError above the limits."""
    from rlctl.errors import ConfigError
    from rlctl.planning.work import Lengths

    longest = settings.data.max_prompt_length, settings.rollout.max_response_length
    limits = (
        ("--prompt-tokens", prompt, "data.max_prompt_length", longest[0]),
        ("--response-tokens", response, "rollout.max_response_length", longest[1]),
    )
    for option, value, setting, limit in limits:
        if value is not None and value > limit:
            raise ConfigError(
                f"{option} {value:g} is more than {setting} = {limit}.", hint="a mean is within its limit."
            )
    if prompt is not None or response is not None:
        told = [name for name, value, *_ in limits if value is not None]
        return Lengths(prompt or limits[0][3], response or limits[1][3], " and ".join(told) + ", else the limit")
    if of_run is None or of_run.mean_response is None or of_run.mean_prompt is None:
        return None
    mean = (min(of_run.mean_prompt, limits[0][3]), min(of_run.mean_response, limits[1][3]))
    return Lengths(*mean, f"means of {of_run.source}")


def _rates(
    settings: Settings, made: Plan, *, measure: bool, mfu: float | None, sampled_tokens_per_s: float | None
) -> Rates:
    from rlctl.planning import rates
    from rlctl.planning.measuring import measured

    if measure:
        return measured(settings, made.machine)
    devices = made.places[0].count if made.places else made.machine.num_devices or 1
    return rates.given(made.machine, devices=devices, mfu=mfu, sampled_tokens_per_s=sampled_tokens_per_s)


def _width() -> int:
    import shutil
    import sys

    return max(40, shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns if sys.stdout.isatty() else PIPE_COLUMNS)
