"""Curves of a run in one line each: the whole history, squeezed into the width there is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rich.text import Text

from rlctl.live.glyphs import Glyphs
from rlctl.live.lines import DIM, cut, label, line, padded
from rlctl.live.state import Metrics


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric, its name on screen and how its values are written."""

    name: str
    key: str
    write: Callable[[float], str]


def _three(value: float) -> str:
    return f"{value:.3f}"


def _short(value: float) -> str:
    """Two digits, however small: mismatches and divergences span many sizes."""
    return f"{value:.1e}" if value and abs(value) < 1e-3 else f"{value:.4f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


KL = Curve("KL", "actor/ppo_kl", _short)
KL_TO_REFERENCE = (
    Curve("KL to ref", "actor/kl_loss", _short),
    Curve("KL to ref", "reward/kl/mean", _short),
)
"""Where it is in the loss, and where it is taken off the reward."""

CURVES = (
    Curve("score", "score/mean", _three),
    Curve("reward", "reward/mean", _three),
    Curve("length", "response_length/mean", lambda v: f"{v:,.0f} tok"),
    Curve("entropy", "actor/entropy", lambda v: f"{v:.3f} nat"),
    KL,
    Curve("clip frac", "actor/pg_clipfrac", _percent),
    Curve("mismatch", "training/rollout_probs_diff_mean", _short),
)
"""The most telling first: on a low terminal the last ones go."""

NAME, VALUE, TWO_IN_A_ROW, RANGE = 9, 9, 72, 21
"""Cells of a curve's name and value, the width from which two curves share a line, and the cells of its range."""


def curve_lines(history: Sequence[Metrics], width: int, height: int, *, glyphs: Glyphs) -> list[Text]:
    """The curves in at most `height` lines: one a line with its range where the lines suffice, else two."""
    curves = curves_of(history)
    if width < TWO_IN_A_ROW or height >= len(curves):
        return [_one(curve, history, width, glyphs=glyphs) for curve in curves[:height]]
    half = (width - 2) // 2
    cells = [padded(_one(curve, history, half, glyphs=glyphs), half) for curve in curves[: 2 * height]]
    return [Text("  ", end="").join(cells[i : i + 2]) for i in range(0, len(cells), 2)]


def curves_of(history: Sequence[Metrics]) -> list[Curve]:
    """With a reference model the divergence from it is the one to watch; else that of the step's own updates."""
    measured = (curve for curve in KL_TO_REFERENCE if any(record.get(curve.key) for record in history))
    kl = next(measured, KL)
    return [kl if curve is KL else curve for curve in CURVES]


def _one(curve: Curve, history: Sequence[Metrics], width: int, *, glyphs: Glyphs) -> Text:
    values = [finite(record.get(curve.key)) for record in history]
    known = [value for value in values if value is not None]
    now = curve.write(values[-1]) if values and values[-1] is not None else "n/a"
    name = (label(curve.name, NAME), "")
    shows_range = width >= NAME + VALUE + RANGE + 24
    room = width - NAME - VALUE - 2 - (RANGE + 2 if shows_range else 0)
    text = line(
        name, " ", (now.rjust(VALUE), "bold"), " ", (sparkline(values, max(1, room), levels=glyphs.levels), "cyan")
    )
    if shows_range and known:
        text = padded(text, width - RANGE)
        text.append(f"{_bare(curve, min(known))} to {_bare(curve, max(known))}".rjust(RANGE), style=DIM)
    return cut(text, width, ellipsis=glyphs.cut)


def _bare(curve: Curve, value: float) -> str:
    """Without its unit, which stands beside it already."""
    return curve.write(value).split(" ")[0]


def finite(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def sparkline(values: Sequence[float | None], width: int, *, levels: str) -> str:
    """At most `width` signs, between the least and the greatest value; a blank where nothing is known.

    A long history is squeezed by the means of equal stretches. Values that are all equal lie in the middle.
    """
    points = _squeezed(values, width)
    known = [point for point in points if point is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    return "".join(" " if point is None else levels[_level(point, low, high, len(levels))] for point in points)


def _level(value: float, low: float, high: float, count: int) -> int:
    if high <= low:
        return count // 2 - 1
    return min(count - 1, int((value - low) / (high - low) * count))


def _squeezed(values: Sequence[float | None], width: int) -> list[float | None]:
    if len(values) <= width:
        return list(values)
    edges = [len(values) * i // width for i in range(width + 1)]
    return [_mean(values[start:end]) for start, end in pairwise(edges)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
