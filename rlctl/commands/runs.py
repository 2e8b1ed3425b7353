"""rlctl runs: list, show, follow, compare, draw and report what runs have left in their folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rlctl.commands import options
from rlctl.completion import names as completed

if TYPE_CHECKING:  # loaded only by a command that runs
    from collections.abc import Mapping

    from rlctl.runs.reading import Run

app = typer.Typer(help="List, show, compare and report runs.", rich_markup_mode=None, no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run's name, the beginning of it, its folder, or `latest`.",
        autocompletion=completed.runs_and_latest,
    ),
]
Names = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Runs: names, beginnings of names, folders, or `latest`.",
        autocompletion=completed.runs_and_latest,
    ),
]
Dir = Annotated[str | None, typer.Option("--dir", metavar="FOLDER", help="The folder of runs (run.dir).")]
Out = Annotated[str | None, typer.Option("--out", "-o", metavar="FILE", help="File to write; else stdout.")]
Metrics = Annotated[
    list[str] | None, typer.Option("--metric", "-m", metavar="NAME", help="Only this metric, or glob; may be repeated.")
]
Table = Annotated[
    Literal["table", "json", "markdown", "csv"], typer.Option("--format", "-f", help="How to print the result.")
]
Text = Annotated[Literal["text", "json", "markdown"], typer.Option("--format", "-f", help="How to print the result.")]


@app.command("list", short_help="One line a run.")
def list_runs(
    folder: Dir = None,
    sort: Annotated[
        Literal["time", "name", "state", "steps", "score", "evaluation", "duration", "size"],
        typer.Option(
            metavar="KEY",
            help="What to sort by: time (of a run's last line), name, state, steps, score, evaluation, duration, size.",
        ),
    ] = "time",
    reverse: Annotated[bool, typer.Option("--reverse", "-r", help="The largest first.")] = False,
    state: Annotated[
        Literal["running", "finished", "interrupted", "failed", "killed", "stopped"] | None,
        typer.Option(
            metavar="STATE", help="Only runs that are running, finished, interrupted, failed, killed or stopped."
        ),
    ] = None,
    format: Table = "table",  # noqa: A002  # the option's name
) -> None:
    """List runs: state, steps done, score at the first and over the last steps, last evaluation, time, size on disk.

    Reads the folders of run.dir. Writes nothing.

    Example: rlctl runs list --sort score --reverse
    """
    from rlctl.display import say, tell
    from rlctl.runs.finding import closed_in, runs_in
    from rlctl.runs.listing import ordered, render, row_of
    from rlctl.runs.printable import printable
    from rlctl.runs.reading import read_run

    parent = _parent(folder)
    rows = [row_of(read_run(each)) for each in runs_in(parent)]
    rows = [row for row in rows if state is None or row.state == state]
    for closed in closed_in(parent):
        tell(f"note: {printable(str(closed), one_line=True)} cannot be read and is left out: Permission denied")
    if not rows:
        tell(f"there is no run in {parent}" if state is None else f"no run in {parent} is {state}")
    if rows or format != "table":
        say(render(ordered(rows, by=sort, reverse=reverse), style=format))


@app.command(short_help="What one run is, did and came to.")
def show(name: Name = "latest", folder: Dir = None, format: Text = "text") -> None:  # noqa: A002
    """Show a run: state, recipe, machine, checkpoints, evaluations, settings of its own, and what is going wrong.

    Reads the run's folder. Writes nothing.

    Example: rlctl runs show latest
    """
    from rlctl.display import say
    from rlctl.runs.summary import render

    say(render(_read(name, folder), style=format))


@app.command(short_help="The last steps, and the next ones as they come.")
def tail(
    name: Name = "latest",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print further steps until the run ends.")] = False,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="Steps to begin with.")] = 10,
    metric: Metrics = None,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for a stopped run to be resumed.")
    ] = 5.0,
    folder: Dir = None,
) -> None:
    """Print the last steps of a run; with --follow the next ones too, also across a resume, until the run ends.

    Reads the run's metrics.jsonl. Writes nothing.

    Example: rlctl runs tail latest --follow
    """
    from rlctl.display import say, tell
    from rlctl.runs import tailing
    from rlctl.runs.series import matching

    run = _read_telling(name, folder)
    names = matching(metric, [run]) if metric else None

    def lines(record: Mapping[str, Any]) -> list[str]:
        return tailing.chosen_words(record, names) if names else tailing.words(record, total=run.total_steps)

    for told in tailing.follow(run.folder, last=count, wait_s=wait, lines=lines, forever=follow):
        (tell if told.note else say)(told.text)


@app.command(short_help="What differs between two or more runs.")
def compare(
    names: Names,
    metric: Metrics = None,
    folder: Dir = None,
    format: Text = "text",  # noqa: A002
) -> None:
    """Compare runs with the first: settings that differ, metrics over the common steps with 95 % intervals.

    Reads the runs' folders. Writes nothing.

    Example: rlctl runs compare base small-lr --metric 'score/*'
    """
    from rlctl.display import say
    from rlctl.errors import ConfigError
    from rlctl.runs.compare_table import render
    from rlctl.runs.comparing import compare as compared
    from rlctl.runs.series import matching

    runs = [_read(name, folder) for name in names]
    if len({run.folder.resolve() for run in runs}) < max(2, len(runs)):
        raise ConfigError(
            f"to compare takes two or more different runs, not {' '.join(names)}.", hint="`rlctl runs list` has them."
        )
    say(render(compared(runs, metrics=matching(metric, runs) if metric else None), style=format))


@app.command(short_help="All steps as CSV.")
def export(
    name: Name = "latest",
    csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values; this is the default.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="JSON lines with every metric in every line.")] = False,
    out: Out = None,
    metric: Metrics = None,
    folder: Dir = None,
) -> None:
    """Write every step with every metric, the columns in a fixed order, empty where a value is not known.

    Reads the run's metrics.jsonl. Writes to stdout, or the file that --out names.

    Example: rlctl runs export latest --csv -o steps.csv
    """
    from rlctl.errors import ConfigError
    from rlctl.runs.export import to_csv, to_jsonl
    from rlctl.runs.series import matching

    if csv and jsonl:
        raise ConfigError("--csv and --jsonl were both given.", hint="choose one.")
    run = _read_telling(name, folder)
    names = matching(metric, [run]) if metric else None
    _put((to_jsonl if jsonl else to_csv)(run, names), out)


@app.command(short_help="Completions that a run has kept.")
def samples(
    name: Name = "latest",
    step: Annotated[int | None, typer.Option(min=0, help="Only of this step.")] = None,
    worst: Annotated[bool, typer.Option("--worst", help="The lowest reward first.")] = False,
    best: Annotated[bool, typer.Option("--best", help="The highest reward first.")] = False,
    problem: Annotated[str | None, typer.Option(metavar="ID", help="Only of problems with this id; a glob.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only those whose reward failed.")] = False,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Samples to print.")] = 3,
    offset: Annotated[int, typer.Option(min=0, help="Samples to pass over.")] = 0,
    full: Annotated[bool, typer.Option("--full", help="Print long texts whole.")] = False,
    folder: Dir = None,
    format: Annotated[  # noqa: A002
        Literal["text", "json"], typer.Option("--format", "-f", help="How to print the result.")
    ] = "text",
) -> None:
    """Print completions with their rewards; run.samples_per_step says how many of each step a run keeps.

    Reads the run's samples.jsonl. Writes nothing.

    Example: rlctl runs samples latest --step 12 --worst
    """
    from rlctl.display import say, tell
    from rlctl.errors import ConfigError
    from rlctl.runs import samples as kept
    from rlctl.runs.tables import as_json

    if worst and best:
        raise ConfigError("--worst and --best were both given.", hint="choose one.")
    run = _read(name, folder)
    all_, complaints = kept.read_samples(run.folder)
    for complaint in complaints:
        tell(f"note: {complaint}")
    order: kept.Order | None = "worst" if worst else "best" if best else None
    found = kept.chosen(all_, step=step, problem=problem, failed=failed, order=order)
    if not found and format == "text":
        raise ConfigError(_no_samples(run.name, [each.step for each in all_], step=step))
    page = found[offset : offset + count]
    if format == "json":
        say(as_json(kept.records(page)))
    else:
        say(kept.render(page, total=len(found), first=min(offset, len(found)), full=full))


@app.command(short_help="One run as one HTML file.")
def report(
    name: Name = "latest",
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE.html", help="File to write; else RUN-report.html.")
    ] = None,
    folder: Dir = None,
) -> None:
    """Write a run as one HTML file that needs no network: plots of all metrics, phases, settings, samples, environment.

    Reads the run's folder. Writes the file that --out names. Needs matplotlib (rlctl[plots]).

    Example: rlctl runs report latest -o report.html
    """
    from rlctl.display import tell
    from rlctl.runs.listing import size
    from rlctl.runs.report import write

    run = _read(name, folder)
    path = Path(out or f"{run.folder.resolve().name}-report.html")
    tell(f"report: {path} ({size(write(run, path))})")


@app.command(short_help="Metrics of runs as a PNG.")
def plot(
    name: Name,
    metrics: Annotated[
        list[str] | None,
        typer.Argument(metavar="METRIC...", help="Metrics by name, or by globs such as 'response_length/*'."),
    ] = None,
    others: Annotated[
        list[str] | None, typer.Option("--with", "-w", metavar="RUN", help="Another run, drawn too; may be repeated.")
    ] = None,
    png: Annotated[bool, typer.Option("--png", help="A PNG; this is the default.")] = True,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE.png", help="File to write; else RUN.png.")
    ] = None,
    folder: Dir = None,
) -> None:
    """Draw metrics over the steps: one panel a metric, one curve a run.

    Reads the runs' metrics.jsonl. Writes the picture that --out names. Needs matplotlib (rlctl[plots]).

    Example: rlctl runs plot base score/mean 'response_length/*' --with other -o a.png
    """
    from rlctl.display import tell
    from rlctl.errors import ConfigError
    from rlctl.runs import figures
    from rlctl.runs.series import matching, series

    wanted = metrics or []
    if wanted and wanted[-1].lower().endswith(".png") and out is None:
        raise ConfigError(f"{wanted[-1]!r} is no metric.", hint=f"-o {wanted[-1]} names the file.")
    runs = [_read_telling(each, folder) for each in (name, *(others or ()))]
    names = matching(wanted, runs)
    if len(names) > figures.MOST_PANELS:
        raise ConfigError(
            f"{' '.join(wanted)} are {len(names)} metrics; {figures.MOST_PANELS} fit.", hint="name fewer."
        )
    labels = figures.labels([str(run.folder) for run in runs])
    panels = {
        metric: {label: series(run.records, metric) for label, run in zip(labels, runs, strict=True)}
        for metric in names
    }
    path = Path(out or f"{runs[0].folder.resolve().name}.png")
    figures.write_png(path, panels)
    tell(f"plot: {path}")


def _no_samples(run: str, steps: list[int | None], *, step: int | None) -> str:
    known = sorted({each for each in steps if each is not None})
    if not known:
        return f"{run} has kept no completions; run.samples_per_step says how many of each step to keep."
    if step is not None and step not in known:
        return f"{run} has no samples of step {step}: it has those of steps {known[0]} to {known[-1]}."
    return f"{run} has {len(steps):,} samples, and none of them is so."


def _put(text: str, out: str | None) -> None:
    """To the file, or to stdout. Raises ConfigError when it cannot be written."""
    from rlctl.display import say, tell
    from rlctl.errors import ConfigError

    if out is None:
        if text:
            say(text)
        return
    try:
        Path(out).write_text(text + "\n" if text else "", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigError(
            f"-o {out} cannot be written: {error.strerror or error}.", hint="name another file."
        ) from error
    tell(f"written: {out}")


def _parent(folder: str | None) -> Path:
    """Where runs are: what was named, else run.dir of the environment. Raises ConfigError for a folder not there."""
    from rlctl.errors import ConfigError

    if folder is None:
        return options.run_dir()
    if not Path(folder).expanduser().is_dir():
        raise ConfigError(f"--dir {folder} is not a folder.", hint="name the folder that holds runs, as `runs`.")
    return Path(folder).expanduser()


def _read(name: str, folder: str | None) -> Run:
    from rlctl.runs.finding import find_run
    from rlctl.runs.reading import read_run

    return read_run(find_run(name, parent=_parent(folder)))


def _read_telling(name: str, folder: str | None) -> Run:
    """The run, and on stderr what is wrong with its files: for a result that has no place for it."""
    from rlctl.display import tell
    from rlctl.runs.printable import printable

    run = _read(name, folder)
    for complaint in run.complaints:
        tell(f"note: {printable(complaint, one_line=True)}")
    return run
