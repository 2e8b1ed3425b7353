"""rlctl smoke: a short run of the same loop, a table of its steps, a verdict with reasons, and a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rlctl.commands import options

if TYPE_CHECKING:  # loaded only by a command that runs
    from rlctl.baselines.file import Baseline
    from rlctl.baselines.judging import Judgement
    from rlctl.config import Loaded
    from rlctl.smoke_run import SmokeRun
    from rlctl.smoke_table import Style


SMOKE_STEPS = 6
BASELINE_STEPS = 10
"""Of each run: beyond these, what runs differ by as wholes is the larger part of what is not known."""
BASELINE_RUNS = 20
"""More than are judged by it later, since it is written once."""
JUDGED_RUNS = 10
"""Enough for a slow-down of a tenth to stand out from the noise of a machine that others use."""

BaselineFile = Annotated[
    Path | None, typer.Option("--baseline", metavar="FILE", help="Judge the runs against the baseline in that file.")
]
WriteBaseline = Annotated[
    Path | None,
    typer.Option("--write-baseline", metavar="FILE", help="Keep the runs as a baseline, for --baseline later."),
]
Runs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=f"Runs, each in a process of its own; {BASELINE_RUNS} for --write-baseline, {JUDGED_RUNS} for --baseline, "
        "else 1.",
    ),
]


def smoke(
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Steps to run; {SMOKE_STEPS}, {BASELINE_STEPS} for a baseline, unless you set trainer.steps."
        ),
    ] = None,
    preset: options.Preset = "smoke",
    variant: options.Variant = None,
    config: options.Config = None,
    backend: options.BackendName = None,
    assignments: options.Set = None,
    runs: Runs = None,
    baseline: BaselineFile = None,
    write_baseline: WriteBaseline = None,
    format: Annotated[  # noqa: A002  # the option's name
        Literal["table", "markdown", "json"], typer.Option("--format", "-f", help="How to print the result.")
    ] = "table",
    record: Annotated[Path | None, typer.Option(hidden=True, help="File for what the run showed.")] = None,
) -> None:
    """Run a few steps, print MFU, loss and score of each, and say whether training works here.

    Reads the preset, its data, its model and the baseline. Writes a baseline when --write-baseline names it, else no
    file; with --baseline beside it, the new one holds the runs of the old one too.

    Exit code 0 only when every check of the verdict holds, 4 when one does not. With --baseline also 4 when the runs
    are worse than the baseline or do something else, and 5 when that cannot be told.

    Example: rlctl smoke --write-baseline smoke-baseline.json
    """
    job = _job(steps=steps, runs=runs, baseline=baseline, write_baseline=write_baseline)
    sources = {"preset": preset, "variant": variant, "config": config, "backend": backend, "assignments": assignments}
    loaded = _load(job, sources)
    from rlctl import display
    from rlctl.smoke_run import run_here

    display.tell(loaded.variant_line())
    options.outlive_closed_pipes()
    if job.runs > 1:
        shown = _run_apart(job, loaded, sources)
    else:
        shown = [run_here(loaded, measured=job.compares or record is not None)]
    if record is not None:
        shown[0].save(record)
    raise typer.Exit(_conclude(job, shown, style=format))


@dataclass(frozen=True, slots=True)
class _Job:
    """How many runs of how many steps, and what becomes of them."""

    steps: int | None
    """As typed."""
    usual_steps: int
    runs: int
    baseline: Baseline | None
    write_baseline: Path | None

    @property
    def compares(self) -> bool:
        return self.baseline is not None or self.write_baseline is not None


def _job(*, steps: int | None, runs: int | None, baseline: Path | None, write_baseline: Path | None) -> _Job:
    """Everything about baselines that can be wrong before the first run. Raises ConfigError."""
    from rlctl.baselines import file
    from rlctl.errors import ConfigError

    if write_baseline is not None:
        if runs == 1 and baseline is None:
            raise ConfigError(
                "--write-baseline needs --runs of at least 2: one run does not show how much runs differ.",
                hint=f"leave --runs out, which takes {BASELINE_RUNS}.",
            )
        file.must_be_writable(write_baseline)
    known = file.read(baseline) if baseline is not None else None
    usual = SMOKE_STEPS if write_baseline is None else BASELINE_STEPS
    usual_runs = BASELINE_RUNS if write_baseline else JUDGED_RUNS if baseline else 1
    return _Job(steps, known.num_steps if known else usual, runs or usual_runs, known, write_baseline)


def _load(job: _Job, sources: dict[str, Any]) -> Loaded:
    """The settings, with what a smoke run sets unless the user did: steps, and for a comparison one thread."""
    always = {
        "backend": ("--backend", sources["backend"]),
        # The trainer scores the samples on its own before the first update, so that the ratio is a measurement.
        "trainer.old_log_probs": ("rlctl smoke", "always"),
        "trainer.steps": ("--steps", job.steps),
    }
    given = {name: value for name, value in sources.items() if name != "backend"}
    loaded = options.load_settings(**given, options=always)
    usual: dict[str, tuple[str, Any]] = {}
    if loaded.origins["trainer.steps"].startswith(("preset ", "default")):
        usual["trainer.steps"] = ("--baseline" if job.baseline else "rlctl smoke", job.usual_steps)
    if job.compares and _needs_one_thread(loaded):
        usual["local.num_threads"] = ("rlctl smoke", 1)
    if usual:
        loaded = options.load_settings(**given, options=always | usual)
    if job.compares:
        _must_suffice(loaded)
    return loaded


def _needs_one_thread(loaded: Loaded) -> bool:
    """On a CPU, threads that wait for one another burn time that depends on who else computes; one does not."""
    from rlctl.variants import cuda_obstacle

    settings = loaded.settings
    on_cpu = settings.local.device == "cpu" or (settings.local.device == "auto" and bool(cuda_obstacle(0)))
    return settings.backend == "local" and on_cpu and loaded.origins["local.num_threads"] == "default"


def _must_suffice(loaded: Loaded) -> None:
    from rlctl.baselines.file import WARMUP
    from rlctl.baselines.judging import MIN_WINDOW
    from rlctl.errors import ConfigError

    steps = loaded.settings.trainer.steps or 0
    if steps < WARMUP + MIN_WINDOW:
        raise ConfigError(
            f"trainer.steps = {steps} (from {loaded.origins['trainer.steps']}) are too few for a baseline: the first "
            f"{WARMUP} are its warm-up, and {MIN_WINDOW} more are needed.",
            hint=f"leave the steps out, which takes {BASELINE_STEPS}.",
        )


def _run_apart(job: _Job, loaded: Loaded, sources: dict[str, Any]) -> list[SmokeRun]:
    """Each run in its own process; ends with a run's exit code where it showed nothing."""
    from rlctl import display
    from rlctl.baselines.judging import differences
    from rlctl.smoke_run import run_apart

    arguments = ["--steps", str(loaded.settings.trainer.steps)]
    for name in ("preset", "variant", "config", "backend"):
        if sources[name] is not None:
            arguments += [f"--{name}", str(sources[name])]
    assignments = list(sources["assignments"] or ())
    if loaded.origins["local.num_threads"] == "rlctl smoke":
        assignments.append(f"local.num_threads={loaded.settings.local.num_threads}")
    for assignment in assignments:
        arguments += ["--set", assignment]
    shown: list[SmokeRun] = []
    for run in run_apart(arguments, runs=job.runs):
        if isinstance(run, int):
            raise typer.Exit(run)
        shown.append(run)
        if run.exit_code:
            break
        if len(shown) < job.runs and job.baseline and any(differences(job.baseline, run.record)):
            display.tell(f"note: ended after run {len(shown)} of {job.runs}, since no run of these can be compared")
            break
    return shown


def _conclude(job: _Job, shown: Sequence[SmokeRun], *, style: Style) -> int:
    """Judge, write, print; the exit code."""
    from rlctl import display, smoke_table
    from rlctl.baselines import file, judging
    from rlctl.smoke_run import checks_of_all

    records, checks = [run.record for run in shown], checks_of_all(shown)
    early = next((run.exit_code for run in shown if run.exit_code), 0)
    judgement, written = None, None
    if job.baseline is not None and not early:
        judgement = judging.judge(job.baseline, records)
    works = smoke_table.passed(checks)
    obstacle = _obstacle(judgement, ended=bool(early), works=works)
    if job.write_baseline is not None and not obstacle:
        written = file.Baseline((*(job.baseline.runs if job.baseline else ()), *records))
        file.write(job.write_baseline, written)
    beside = smoke_table.Beside(records, shown[0].unread, judgement, written, str(job.write_baseline))
    display.say(smoke_table.render(shown[0].metrics, checks, shown[0].info, style=style, beside=beside))
    if job.write_baseline is not None and obstacle:
        display.tell(f"note: {job.write_baseline} was not written: {obstacle}")
    if early or not works:
        return early or 4
    return judgement.exit_code if judgement and not written else 0


def _obstacle(judgement: Judgement | None, *, ended: bool, works: bool) -> str:
    """Why runs make no baseline, or none together with those that they were judged by. Slower ones do: a neighbour may
    have come, and that is what a baseline of several sittings is for."""
    if ended:
        return "the run was ended"
    if not works:
        return "the run does not work"
    if judgement is None:
        return ""
    changed = any(finding.outcome == "changed" for finding in judgement.findings)
    other = changed or judgement.differences or judgement.notes
    return "the runs do something else than those of the baseline, or are of another rlctl" if other else ""
