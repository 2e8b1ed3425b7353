"""Is the run well: what its groups can teach, what looks wrong, and how fast it goes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from rlctl.diagnosis import FEWEST_STEPS, diagnose
from rlctl.live.glyphs import Glyphs
from rlctl.live.lines import DIM, Part, cut, folded, line, wrapped
from rlctl.live.sparkline import finite
from rlctl.live.state import Metrics


def signal_lines(metrics: Metrics, width: int, height: int, *, glyphs: Glyphs) -> list[Text]:
    """Share of the last step's groups that none, some or all of their samples solved, and of those that teach."""
    shares = [(kind, finite(metrics.get(f"reward/solved_{kind}"))) for kind in ("none", "some", "all")]
    flat = finite(metrics.get("reward/frac_zero_signal"))
    colours = {"none": "red", "some": "green", "all": "blue"}
    # Each part is understood without the others, since a narrow terminal shows only the first.
    parts: list[Part] = [(f"signal {_percent(None if flat is None else 1 - flat)}", "bold")]
    words = {"none": "groups: none solved", "some": "some", "all": "all"}
    parts += [(f"{words[kind]} {_percent(share)}", colours[kind]) for kind, share in shares]
    return folded(parts, width, most=height, ellipsis=glyphs.cut)


def diagnosis_lines(
    history: Sequence[Metrics], width: int, height: int, *, glyphs: Glyphs, limit: int | None
) -> list[Text]:
    """The gravest finding, whole where there is room, and how many there are beside it."""
    findings = diagnose(history, max_response_length=limit)
    if not findings:
        enough = len(history) >= FEWEST_STEPS
        return [line(("no sign of trouble", "green") if enough else (f"diagnosis: after {FEWEST_STEPS} steps", DIM))]
    more = f" ({len(findings) - 1} more: {', '.join(f.key for f in findings[1:])})" if findings[1:] else ""
    rows = wrapped(f"! {findings[0].line}{more}", width, style="bold yellow")
    if len(rows) > height:
        rows = wrapped(f"! {findings[0].text}{more}", width, style="bold yellow")
    if len(rows) > height:
        rows[height - 1].append(" " + glyphs.cut)
    return [cut(row, width, ellipsis=glyphs.cut) for row in rows[:height]]


def speed_lines(metrics: Metrics, width: int, height: int, *, glyphs: Glyphs) -> list[Text]:
    """Tokens a second, MFU, FLOP/s and memory of the last step; n/a where they are not known."""
    parts: list[Part] = [
        (f"{_number(metrics.get('perf/tokens_per_s'))} tok/s", "bold"),
        (f"MFU {_percent(finite(metrics.get('perf/mfu/actor')), 1)} update", "bold"),
        f"{_percent(finite(metrics.get('perf/mfu/step')), 1)} step",
        f"{_tflops(finite(metrics.get('perf/tflops_per_device')))} TFLOP/s",
        f"memory {_gib(finite(metrics.get('perf/max_memory_allocated_gb')))}",
        f"sampling {_number(metrics.get('perf/sampled_tokens_per_s'))} tok/s",
    ]
    return folded(parts, width, most=height, ellipsis=glyphs.cut)


def _percent(share: float | None, digits: int = 0) -> str:
    return "n/a" if share is None else f"{100 * share:.{digits}f} %"


def _number(value: object) -> str:
    known = finite(value)
    return "n/a" if known is None else f"{known:,.0f}"


def _tflops(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}" if value < 10 else f"{value:,.0f}"


def _gib(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1f} GiB"
