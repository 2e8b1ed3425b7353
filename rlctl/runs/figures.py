"""Pictures by matplotlib: PNG for a paper or a pull request, SVG for the report.

SVG keeps its colours as CSS variables, so that the page around it decides between dark and light; it holds no words of
a run, only ticks, so that nothing in it has to be escaped.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.errors import BackendUnavailable, ConfigError
from rlctl.runs.charts import Bar, Drawn, Point
from rlctl.runs.printable import printable
from rlctl.runs.series import MOST_POINTS, Series, thinned, unbroken

if TYPE_CHECKING:  # matplotlib is an extra, loaded by those who draw
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f")
"""Okabe and Ito's colours, which colour-blind readers tell apart, and two more: https://jfly.uni-koeln.de/color/."""

INK, RULE = "#010101", "#020202"
"""Stand for text and grid lines in an SVG, until the page's own colours take their place."""

WIDTH, HEIGHT, WIDE = 4.2, 1.9, 9.0
"""Inches of a plot in the report, which fills a phone's width at 1:1; and the width of one over the whole page."""

PHASE_COLOURS = {
    "sample": 0, "score": 2, "old log-probs": 5, "reference": 6, "update": 1, "sync weights": 4, "save": 3, "other": 7,
    "evaluate": 6,
}  # fmt: skip


FEW_POINTS = 30
"""A curve of fewer has a mark at each."""

MOST_PANELS = 30
"""Panels of a PNG, of 300 pixels each."""


def labels(folders: Sequence[str]) -> list[str]:
    """The names of runs, or their folders where two have one name."""
    names = [Path(folder).resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else list(folders)


def figure_class() -> Any:
    """matplotlib's Figure, which needs neither a display nor global state. Raises BackendUnavailable without it."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise BackendUnavailable(
            "plots need matplotlib, which is not installed.", hint="pip install 'rlctl[plots]'"
        ) from error
    return Figure


def write_png(path: Path, panels: Mapping[str, Mapping[str, Series]], *, width: float = 8.0) -> None:
    """One panel a metric, one curve a run: {metric: {run: series}}. Raises ConfigError on a path."""
    figure = figure_class()(figsize=(width, 0.6 + 2.4 * len(panels)), layout="constrained")
    for axes, (metric, curves) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels.items(), strict=True):
        for place, (run, one) in enumerate(curves.items()):
            _curve(axes, one, colour=PALETTE[place % len(PALETTE)], label=_label(run))
        axes.set_title(_label(metric), fontsize=10, loc="left")
        axes.grid(alpha=0.3)
        if len(curves) > 1:
            axes.legend(fontsize=8)
    axes.set_xlabel("step" + (" (means of neighbouring steps, and their range)" if _any_thinned(panels) else ""))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")  # a name in a script the font has not
            figure.savefig(path, format="png", dpi=130)
    except OSError as error:
        raise ConfigError(f"-o {path} cannot be written: {error.strerror or error}.", hint="name another.") from error


def _any_thinned(panels: Mapping[str, Mapping[str, Series]]) -> bool:
    return any(len(one.steps) > MOST_POINTS for curves in panels.values() for one in curves.values())


def _label(text: str) -> str:
    """A name as matplotlib shows it: no mathematics between dollars, and a first underscore does not hide it."""
    safe = printable(text, one_line=True).replace("\\", "/").replace("$", r"\$")
    return f" {safe}" if safe.startswith("_") else safe


def _curve(axes: Axes, one: Series, *, colour: str, label: str | None = None, width: float = 1.4) -> None:
    few = thinned(one)
    if few.thinned:
        axes.fill_between(few.steps, few.low, few.high, color=colour, alpha=0.2, linewidth=0)
    parts = unbroken(few.steps)
    steps, values = [float(step) for step in few.steps], list(few.values)
    for part in reversed(parts[1:]):  # a value that is none breaks the line
        steps.insert(part.start, math.nan)
        values.insert(part.start, math.nan)
    axes.plot(
        steps, values, color=colour, linewidth=width, marker="o", markersize=2.5, label=label,
        markevery=None if len(few.steps) < FEW_POINTS else alone(parts),
    )  # fmt: skip


def alone(parts: Sequence[range]) -> list[int]:
    """Where the points lie that have no neighbour on either side, among all points and the breaks between parts."""
    return [part.start + breaks for breaks, part in enumerate(parts) if len(part) == 1]


@dataclass(frozen=True, slots=True)
class Plot:
    """An `<svg>`, and where its axes lie: left and right end as shares of its width, and the steps there."""

    svg: str
    left: float
    right: float
    first: float
    last: float


def chart_plot(drawn: Drawn, *, key: str) -> Plot:
    """A chart of the report; `key` makes its ids its own on the page."""
    figure, axes = _small()
    curves = drawn.scaled()
    if drawn.chart.kind == "shares":
        _stack(axes, curves, PALETTE)
    else:
        for place, one in enumerate(curves):
            # Wider beneath, so that curves that lie on each other are all seen.
            _curve(axes, one, colour=PALETTE[place], width=1.4 + 0.8 * min(3, len(curves) - 1 - place))
    if not any(value for one in curves for value in one.values):
        axes.set_ylim(-0.05, 1)
    if drawn.chart.log and (above := [value for one in curves for value in one.values if value > 0]):
        if math.isclose(min(above), max(above)):  # as means of equal values are
            axes.set_ylim(above[0] / 10, above[0] * 10)
        axes.set_yscale("log", nonpositive="mask")
    _step_ticks(axes)
    return _plot(figure, key=key)


def gantt_plot(bars: Sequence[Bar], *, key: str) -> Plot:
    """Phases over the run's own seconds, a row each."""
    phases = phases_of(bars)
    figure, axes = _small(width=WIDE, height=0.55 + 0.24 * len(phases))
    for row, phase in enumerate(phases):
        spans = [(bar.start, bar.seconds) for bar in bars if bar.phase == phase]
        axes.broken_barh(spans, (row - 0.4, 0.8), color=PALETTE[PHASE_COLOURS[phase]], linewidth=0)
    axes.set_yticks(range(len(phases)), phases)
    axes.invert_yaxis()
    axes.set_xlabel("seconds of the run's own time", fontsize=8, color=INK)
    return _plot(figure, key=key)


def phases_of(bars: Sequence[Bar]) -> list[str]:
    return [phase for phase in PHASE_COLOURS if any(bar.phase == phase for bar in bars)]


def shares_plot(shares: Sequence[Series], *, key: str) -> Plot:
    """The percent of each phase in the time of a step, evaluations and saves included."""
    figure, axes = _small(width=WIDE, height=HEIGHT)
    _stack(axes, shares, [PALETTE[PHASE_COLOURS[one.name]] for one in shares])
    _step_ticks(axes)
    return _plot(figure, key=key)


def _stack(axes: Axes, shares: Sequence[Series], colours: Sequence[str]) -> None:
    """Percent on percent, over the steps that all have, or over the neighbours that a point stands for."""
    few = [thinned(one) for one in shares if one.steps == shares[0].steps]
    steps, values = few[0].steps, [one.values for one in few]
    if len(steps) > 1:
        axes.stackplot(steps, values, colors=colours, step="mid", linewidth=0, alpha=0.85)
    else:
        below = 0.0
        for (value,), colour in zip(values, colours, strict=False):
            axes.bar(steps, [value], bottom=below, width=0.5, color=colour, alpha=0.85)
            below += value
    axes.set_ylim(0, 100)


def evaluation_plot(points: Sequence[Point], *, key: str) -> Plot:
    """Values of an evaluation metric, each with its interval where it has one."""
    figure, axes = _small()
    steps, values = [point.step for point in points], [point.value for point in points]
    axes.plot(steps, values, color=PALETTE[0], marker="o", markersize=3, linewidth=1.2)
    for point in points:
        if point.low is not None and point.high is not None:
            ends = [point.low, point.high]
            axes.plot([point.step] * 2, ends, color=PALETTE[0], linewidth=1.2, marker="_", markersize=5)
    if not any(values):
        axes.set_ylim(-0.05, 1)
    _step_ticks(axes)
    return _plot(figure, key=key)


def _small(*, width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, Axes]:
    figure = figure_class()(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.tick_params(labelsize=8, colors=INK, length=3)
    axes.grid(color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(RULE)
    return figure, axes


def _step_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    first, last = axes.get_xlim()
    if last - first < 1:  # of one step, with fractions of it beside
        middle = (first + last) / 2
        axes.set_xlim(middle - 1, middle + 1)


def _plot(figure: Figure, *, key: str) -> Plot:
    import matplotlib

    axes, stream = figure.axes[0], io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": key}):
        figure.patch.set_alpha(0)
        axes.patch.set_alpha(0)
        axes.yaxis.get_offset_text().set(color=INK, fontsize=7)
        figure.savefig(stream, format="svg", metadata={"Date": None})
    box, (first, last) = axes.get_position(), axes.get_xlim()
    return Plot(_embeddable(stream.getvalue(), key=key), box.x0, box.x1, first, last)


def _embeddable(text: str, *, key: str) -> str:
    """The `<svg>` element for a page: colours as variables, ids of its own, no address of anything."""
    text = text[text.index("<svg ") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*|<style.*?</style>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", r"<svg \1 aria-hidden='true'>", text, count=1)
    text = re.sub(r"font-family: [^;]*; ", "", text).replace("xlink:href", "href")
    text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{key}-", text)
    return _themed(re.sub(r"\n\s*", "\n", text))


def _themed(text: str) -> str:
    for colour, variable in ((INK, "ink"), (RULE, "rule"), *((c, f"c{i}") for i, c in enumerate(PALETTE))):
        text = text.replace(colour, f"var(--{variable})")
    return text
