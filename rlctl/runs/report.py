"""`rlctl runs report`: one run as one HTML file that needs nothing else, neither a network nor another file.

Plots are SVG by matplotlib, inline: sharp at any size, in the page's own colours by day and night, and there where
scripts are not run, as in the artifacts of many CI systems. 5,000 steps make a file of two to three MB; a plotting
library for browsers may have more alone. The one script, which reads values off the plots and filters the settings, is
ours, and the page's own policy (Content-Security-Policy) lets nothing else run and nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rlctl import __version__
from rlctl.diagnosis import FEWEST_STEPS
from rlctl.runfiles import STEP
from rlctl.runs import charts, figures, summary
from rlctl.runs.charts import Drawn
from rlctl.runs.figures import PALETTE, Plot
from rlctl.runs.lines import number
from rlctl.runs.listing import duration, last_evaluation, over_last, row_of, scores_of
from rlctl.runs.printable import printable, shortened
from rlctl.runs.reading import Run, flat
from rlctl.runs.samples import Sample, read_samples, score_words
from rlctl.runs.series import MOST_POINTS, Series, thinned

Item = TypeVar("Item")

GANTT_STEPS = 40
"""Last steps of which each phase is drawn: of more, bars are thinner than a pixel."""

MOST_CHARTS = 80
"""Charts of a page: a run with hundreds of metrics of its own still makes a file that opens."""

PAGE_POINTS, FEWEST_POINTS = 16_000, 50
"""Points of all curves together, about 80 bytes each; and of each, however many curves there are."""

MOST_EVALUATIONS = 200
"""Evaluations that are drawn, spread over the run."""

SAMPLE_STEPS, SAMPLES_A_STEP = 20, 8
"""Steps, spread over the run, whose samples are shown, and how many of each."""

TEXT_CHARACTERS, TEXT_BYTES = 3_000, 1_500_000
"""Of one text of a sample, and of all texts together once escaped."""

VALUE_CHARACTERS = 500
"""Of a setting's value."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a legend: its name, the variable of its colour, its last value."""

    name: str
    colour: str
    last: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot with its words. `data` is what the script reads values from, as JSON that cannot end its element."""

    title: str
    unit: str
    why: str
    plot: Plot
    curves: Sequence[Curve]
    data: str
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    key: str
    title: str
    figures: Sequence[Figure]
    notes: Sequence[str] = ()


def write(run: Run, path: Path) -> int:
    """Write the report and give its size in bytes. Raises BackendUnavailable without matplotlib, ConfigError."""
    from rlctl.errors import ConfigError

    content = page(run).encode("utf-8", "backslashreplace")
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"-o {path} cannot be written: {error.strerror or error}.", hint="name another.") from error
    return len(content)


def page(run: Run) -> str:
    """The report as text. All words of the run go through the template's escaping."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    folder = Path(__file__).parent / "page"
    script, style = ((folder / name).read_text(encoding="utf-8") for name in ("report.js", "report.css"))
    templates = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("report.html").render(
        name=printable(run.name, one_line=True),
        version=__version__,
        state=run.state.kind,
        why=printable(run.state.why, one_line=True),
        steps=len(run.steps),
        fewest_steps=FEWEST_STEPS,
        facts=summary.facts(run),
        tiles=_tiles(run),
        findings=[(one.text, one.cure) for one in summary.findings(run)],
        complaints=[printable(text, one_line=True) for text in run.complaints],
        sections=list(_sections(run)),
        evaluations=[[printable(cell, one_line=True) for cell in row] for row in summary.evaluation_rows(run)],
        settings=_settings(run),
        samples=_samples(run),
        environment=_environment(run),
        svg=Markup,
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    """(name, figure, what it is) at the top."""
    row = row_of(run)
    metric, value, step = last_evaluation(run)
    rates = sorted(v for record in run.steps if (v := number(record.get("perf/tokens_per_s"))) is not None)
    use = sorted(v for record in run.steps if (v := number(record.get("perf/mfu/step"))) is not None)
    score = "n/a" if row.last_score is None else f"{row.last_score:.3f}"
    began = "" if row.first_score is None else f"{row.first_score:.3f} at the first step"
    where = "" if metric is None else f"{metric.removeprefix('val-core/')} at step {step}"
    total = "?" if run.total_steps is None else f"{run.total_steps:,}"
    return [
        ("score", score, f"{over_last(scores_of(run)[1])}; {began}" if began else "no step has one"),
        ("evaluation", "n/a" if value is None else f"{value:.3f}", printable(where, one_line=True) or "none was made"),
        ("steps", f"{run.done:,}", f"of {total}"),
        ("time", duration(run.seconds), "in steps, evaluations and saves"),
        ("tokens/s", f"{rates[len(rates) // 2]:,.0f}" if rates else "n/a", "median step, prompts and completions"),
        ("MFU", f"{100 * use[len(use) // 2]:.1f} %" if use else "n/a", "median step, sampling and update"),
    ]


def _sections(run: Run) -> Iterator[Section]:
    """The sections with plots, in the order of the page."""
    subjects = list(charts.drawn(run))
    left, most = MOST_CHARTS, _points_a_curve([one for _, drawn in subjects for one in drawn])
    for order, (title, drawn) in enumerate(subjects):
        shown = [replace(one, curves=tuple(thinned(c, most=most) for c in one.curves)) for one in drawn[:left]]
        left -= len(shown)
        plots = [_figure(one, key=f"s{order}f{place}") for place, one in enumerate(shown)]
        notes = [f"{len(drawn) - len(shown):,} more charts are left out"] if len(drawn) > len(shown) else []
        if any(curve.thinned for one in shown for curve in one.curves):
            notes.append(f"a point is the mean of neighbouring steps ({most} points a curve), a band their range")
        wide = list(_phases(run)) if title == "Speed" else []
        words = [f"phases are those of the last {GANTT_STEPS} steps"] if wide and len(run.steps) > GANTT_STEPS else []
        yield Section(f"s{order}", title, [*wide, *plots], [*words, *notes])
    if evaluated := list(_evaluations(run)):
        some = (
            f"{MOST_EVALUATIONS} of {len(run.evaluations):,} evaluations"
            if len(run.evaluations) > MOST_EVALUATIONS
            else ""
        )
        note = "bars: 95 % intervals (Wilson) over problems; too wide at most, where scores lie between 0 and 1"
        yield Section("evaluations", "Evaluations", evaluated, [note, *filter(None, [some])])


def _points_a_curve(drawn: Sequence[Drawn]) -> int:
    curves = sum(len(one.curves) for one in drawn[:MOST_CHARTS])
    return min(MOST_POINTS, max(FEWEST_POINTS, PAGE_POINTS // max(1, curves)))


def _figure(drawn: Drawn, *, key: str) -> Figure:
    more = f"; {drawn.left_out} more are left out" if drawn.left_out else ""
    chart, curves = drawn.chart, drawn.scaled()
    shown = [_curve(one, place) for place, one in enumerate(curves)]
    plot = figures.chart_plot(drawn, key=key)
    return Figure(printable(chart.title, one_line=True), chart.unit, chart.why + more, plot, shown, _data(curves, plot))


def _curve(one: Series, place: int) -> Curve:
    return Curve(printable(one.name, one_line=True), f"c{place % len(PALETTE)}", _short(one.values[-1]))


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _data(curves: Sequence[Series], plot: Plot) -> str:
    """What the script reads off: the axes' place, and the points of each curve as they are drawn."""
    few = [thinned(one) for one in curves]
    content = {
        "axes": [round(end, 4) for end in (plot.left, plot.right, plot.first, plot.last)],
        "curves": [[list(one.steps), [_short(value) for value in one.values]] for one in few],
    }
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _phases(run: Run) -> Iterator[Figure]:
    bars = charts.gantt(run)
    if not bars:
        return
    first = run.steps[-GANTT_STEPS][STEP] if len(run.steps) > GANTT_STEPS else 0
    late = [bar for bar in bars if bar.step >= first]
    yield Figure("phases over time", "", "", figures.gantt_plot(late, key="gantt"), [], "", wide=True)
    shares = charts.shares(bars, figures.phases_of(bars))
    colours = [f"c{figures.PHASE_COLOURS[one.name]}" for one in shares]
    legend = [Curve(one.name, colour, _short(one.values[-1])) for one, colour in zip(shares, colours, strict=True)]
    plot = figures.shares_plot(shares, key="shares")
    yield Figure("share of each phase", "% of a step", "", plot, legend, _data(shares, plot), wide=True)


def _evaluations(run: Run) -> Iterator[Figure]:
    names = dict.fromkeys(n for record in run.evaluations for n in record if n.startswith("val-"))
    names = {name: None for name in names if not name.endswith("/num_problems")}
    for place, name in enumerate(list(names)[: MOST_CHARTS // 2]):
        points = _spread(charts.points(run, name), MOST_EVALUATIONS)
        if not points:
            continue
        one = Series(name, tuple(p.step for p in points), tuple(p.value for p in points))
        plot = figures.evaluation_plot(points, key=f"e{place}")
        title = printable(name.removeprefix("val-core/").removeprefix("val-aux/"), one_line=True)
        yield Figure(title, "", "", plot, [_curve(one, 0)], _data([one], plot))


def _settings(run: Run) -> list[tuple[str, list[tuple[str, str, str, bool]]]]:
    """[(table, [(setting, value, origin, whether it is not a default)])]."""
    tables: dict[str, list[tuple[str, str, str, bool]]] = {}
    for name, value in run.settings.items():
        origin = str(run.origins.get(name, "unknown"))
        shown = shortened(json.dumps(value, default=str), VALUE_CHARACTERS)
        row = (printable(name, one_line=True), printable(shown, one_line=True), printable(origin, one_line=True))
        tables.setdefault(row[0].partition(".")[0] if "." in row[0] else "", []).append((*row, origin != "default"))
    return list(tables.items())


def _samples(run: Run) -> dict[str, Any]:
    """Samples by step, spread over the run, as safe text; and how many there are."""
    found, complaints = read_samples(run.folder)
    steps = sorted({each.step for each in found if each.step is not None})
    chosen = [
        each
        for step in _spread(steps, SAMPLE_STEPS)
        for each in [one for one in found if one.step == step][:SAMPLES_A_STEP]
    ]
    shown = list(_within_budget(chosen))
    groups = [(step, [each for own, each in shown if own == step]) for step in dict.fromkeys(own for own, _ in shown)]
    safe = [printable(text, one_line=True) for text in complaints]
    return {"groups": groups, "total": len(found), "shown": len(shown), "complaints": safe}


def _within_budget(samples: Sequence[Sample]) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """(step, the words of a sample) as long as TEXT_BYTES last."""
    budget = TEXT_BYTES
    for each in samples:
        texts = (each.question, each.answer, each.marked)
        question, answer, completion = (printable(shortened(text, TEXT_CHARACTERS)) for text in texts)
        # What HTML escapes takes at most six bytes, any other character at most four.
        budget -= 6 * (len(question) + len(answer) + len(completion))
        if budget < 0:
            return
        yield each.step, {**_words(each), "question": question, "answer": answer, "completion": completion}


def _words(sample: Sample) -> dict[str, Any]:
    return {
        "problem": printable(sample.problem, one_line=True),
        "reward": "no reward" if sample.reward is None else f"{sample.reward:.4g}",
        "kind": "none" if sample.reward is None else "good" if sample.reward > 0 else "bad",
        "scores": score_words(sample),
        "failures": [printable(kind, one_line=True) for kind in sample.failures],
        "note": printable(sample.note, one_line=True),
        "end": "cut at the length limit" if sample.finish_reason == "length" else "",
        "tokens": sample.tokens,
    }


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    """At most so many, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(place * (len(items) - 1) / (count - 1))] for place in range(count)]


def _environment(run: Run) -> list[tuple[str, str]]:
    versions = run.config.get("versions")
    known = flat(versions) or {"rlctl": run.config.get("rlctl_version", "unknown")}
    machine = {f"machine: {name.replace('_', ' ')}": value for name, value in run.machine.items()}
    both = {**machine, **{f"version of {name}": value for name, value in known.items()}}
    return [(printable(name, one_line=True), printable(str(value), one_line=True)) for name, value in both.items()]
