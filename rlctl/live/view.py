"""The whole picture: which blocks there are, how important each is, and where they stand at which width.

below WIDE columns                     from WIDE columns on
progress                               progress
steps                                  steps           | curves
curves                                                 | phases, speed, signal, diagnosis
phases, speed, signal, diagnosis       one completion
one completion
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.text import Text

from rlctl.live.glyphs import Glyphs
from rlctl.live.health import diagnosis_lines, signal_lines, speed_lines
from rlctl.live.layout import Block, beside, stacked
from rlctl.live.lines import DIM, cut, line
from rlctl.live.phases import phase_lines
from rlctl.live.progress import progress_lines
from rlctl.live.sample import sample_lines
from rlctl.live.sparkline import CURVES, TWO_IN_A_ROW, curve_lines
from rlctl.live.state import State
from rlctl.live.table import MOST_ROWS, table_lines, whole_width
from rlctl.printable import one_line

WIDE = 136
"""Columns from which two stacks stand beside each other: the whole table, and curves with their ranges."""

GAP = 3
MOST_SAMPLE_LINES = 24

_FIGURES = 22
"""Lines of the figures beside the table, blank ones among them."""


def frame(state: State, width: int, height: int, *, glyphs: Glyphs, now: float) -> list[Text]:
    """The view in at most `height` lines of at most `width` cells; `now` is on the monotonic clock."""
    return [*head(state, width, height, glyphs=glyphs, now=now), *body(state, width, height, glyphs=glyphs)]


def head(state: State, width: int, height: int, *, glyphs: Glyphs, now: float) -> list[Text]:
    """What changes with the clock: the title where there is room, progress, what is going on."""
    lines = progress_lines(state, width, max(1, height), glyphs=glyphs, now=now)
    titled = height >= _TITLED and state.title
    title = [cut(line((one_line(state.title, encoding=glyphs.encoding), DIM)), width, ellipsis=glyphs.cut)]
    return [*title, *lines] if titled else lines


_SPACED, _TITLED = 10, 30
"""Lines from which a blank one stands below the progress, and from which the title is shown."""


def body(state: State, width: int, height: int, *, glyphs: Glyphs) -> list[Text]:
    """What changes with each step."""
    room = height - len(head(state, width, height, glyphs=glyphs, now=state.began))
    blocks = _columns(state, width, room, glyphs) if width >= WIDE else _stack(state, width, glyphs)
    spaced = room >= _SPACED
    lines = [cut(text, width, ellipsis=glyphs.cut) for text in stacked(blocks, room - 1 if spaced else room)]
    return [Text(end=""), *lines] if spaced else lines


def _stack(state: State, width: int, glyphs: Glyphs) -> list[Block]:
    return [_table(state, width), *_figures(state, width, glyphs), _sample(state, width, glyphs)]


def _columns(state: State, width: int, room: int, glyphs: Glyphs) -> list[Block]:
    left = whole_width(state.history)
    right = width - left - GAP
    figures = _figures(state, right, glyphs)

    def draw(height: int) -> list[Text]:
        return beside(stacked([_table(state, left)], height), stacked(figures, height), left_width=left, gap=GAP)

    rows = min(MOST_ROWS, len(state.history) + 1, room * 3 // 5)
    both = Block(0, least=6, good=_FIGURES, most=max(_FIGURES, rows), draw=draw)
    return [both, _sample(state, width, glyphs)]


def _table(state: State, width: int) -> Block:
    rows = max(2, min(MOST_ROWS, len(state.history) + 1))
    return Block(1, least=2, good=min(5, rows), most=rows, draw=partial(table_lines, state.history, width))


def _figures(state: State, width: int, glyphs: Glyphs) -> Sequence[Block]:
    last, history, limit = state.last, state.history, state.max_response_length
    pairs = (len(CURVES) + 1) // 2 if width >= TWO_IN_A_ROW else len(CURVES)
    folds = 1 if width >= TWO_IN_A_ROW else 2
    blocks = [
        Block(3, min(4, pairs), pairs, len(CURVES), lambda height: curve_lines(history, width, height, glyphs=glyphs)),
        Block(4, 2, 3, 3, lambda height: phase_lines(last, width, height, glyphs=glyphs)),
        Block(5, 1, folds, folds + 1, lambda height: speed_lines(last, width, height, glyphs=glyphs)),
        Block(2, 1, folds, folds + 1, lambda height: signal_lines(last, width, height, glyphs=glyphs)),
        Block(0, 1, 2, 4, lambda height: diagnosis_lines(history, width, height, glyphs=glyphs, limit=limit)),
    ]
    return blocks if history else []


def _sample(state: State, width: int, glyphs: Glyphs) -> Block:
    draw = partial(sample_lines, state.rollout, width, glyphs=glyphs, step=state.done)
    return Block(6, least=4, good=5, most=MOST_SAMPLE_LINES, draw=draw)
