"""Where a step's time went: a bar with a stretch for each phase, its seconds and its share."""

from __future__ import annotations

from rich.text import Text

from rlctl.live.glyphs import Glyphs
from rlctl.live.lines import DIM, folded, line
from rlctl.live.sparkline import finite
from rlctl.live.state import Metrics

PHASES = (
    ("sample", ("gen",), "blue"),
    ("score", ("reward",), "magenta"),
    ("log-probs", ("old_log_prob", "ref"), "yellow"),
    ("update", ("update_actor",), "green"),
    ("sync", ("update_weights",), "cyan"),
)
"""Name, timings of docs/metrics.md that it adds up, colour; their signs are those of the glyphs, in this order."""

OTHER = "other"

WAIT = "timing_s/wait_for_samples"


def phase_seconds(metrics: Metrics) -> dict[str, float]:
    """Seconds of each phase of a step; `other` is what none of them accounts for. Log-probs only where some are.

    Where sampling runs beside the update, what counts of it is how long the trainer stood still for it.
    """
    seconds = {
        name: sum(finite(metrics.get(f"timing_s/{timing}")) or 0.0 for timing in timings) for name, timings, _ in PHASES
    }
    waited = finite(metrics.get(WAIT))
    if waited is not None:
        seconds |= {"sample": waited, "score": 0.0}
    if not seconds["log-probs"]:
        del seconds["log-probs"]
    whole = finite(metrics.get("timing_s/step")) or 0.0
    return {**seconds, OTHER: max(0.0, whole - sum(seconds.values()))}


def widths(seconds: dict[str, float], width: int) -> dict[str, int]:
    """Cells of each phase, in all `width`: whole cells by largest remainder, one at least for what is not 0."""
    whole = sum(seconds.values())
    if whole <= 0 or width < len(seconds):
        return dict.fromkeys(seconds, 0)
    exact = {name: value / whole * width for name, value in seconds.items()}
    cells = {name: max(int(value), 1 if value else 0) for name, value in exact.items()}
    while (missing := width - sum(cells.values())) != 0:
        gap = {name: exact[name] - cells[name] for name in cells}
        if missing > 0:
            cells[max(gap, key=gap.__getitem__)] += 1
        else:
            cells[min((n for n in gap if cells[n] > 1), key=gap.__getitem__)] -= 1
    return cells


def phase_lines(metrics: Metrics, width: int, height: int, *, glyphs: Glyphs) -> list[Text]:
    """The bar, and below it what each sign means, with seconds and share."""
    seconds = phase_seconds(metrics)
    whole = sum(seconds.values())
    if not whole:
        return [line(("phases of a step: after the first", DIM))]
    signs = dict(zip([name for name, *_ in PHASES] + [OTHER], glyphs.phases, strict=True))
    colours = {name: colour for name, _, colour in PHASES} | {OTHER: DIM}
    cells = widths(seconds, width)
    bar = line(*((signs[name] * count, colours[name]) for name, count in cells.items()))
    names = [(f"{signs[name]} {name}", value, colours[name]) for name, value in seconds.items()]
    whole_legend = [(f"{text} {_seconds(value)} {100 * value / whole:.0f} %", colour) for text, value, colour in names]
    legend = folded(whole_legend, width, most=len(names), ellipsis=glyphs.cut)
    if len(legend) > height - 1:
        shares = [(f"{text} {100 * value / whole:.0f} %", colour) for text, value, colour in names]
        legend = folded(shares, width, most=max(1, height - 1), ellipsis=glyphs.cut)
    return [bar, *legend][:height] if height > 1 else legend


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:,.1f} s" if value < 100 else f"{value:,.0f} s"
