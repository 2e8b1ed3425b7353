"""Blocks of lines, fitted into a height: the less important ones go, the others share what room there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from rlctl.live.lines import padded


@dataclass(frozen=True, slots=True)
class Block:
    """What a part of the view needs: `draw` gives at most so many lines; `importance` 0 stays longest.

    `least` lines it must have to be there at all, `good` it gets before blank lines set blocks apart, `most` it can
    use.
    """

    importance: int
    least: int
    good: int
    most: int
    draw: Callable[[int], list[Text]]


def stacked(blocks: Sequence[Block], height: int) -> list[Text]:
    """The blocks above one another, in their order, in at most `height` lines."""
    chosen = _chosen(blocks, height)
    heights = {id(block): block.least for block in chosen}
    spare = height - sum(heights.values())
    spare = _grow(chosen, heights, spare, wanted=lambda block: block.good)
    gaps = min(len(chosen) - 1, spare) if chosen else 0
    _grow(chosen, heights, spare - gaps, wanted=lambda block: block.most)
    lines: list[Text] = []
    for place, block in enumerate(chosen):
        if lines and place >= len(chosen) - gaps:
            lines.append(Text(end=""))
        lines += block.draw(heights[id(block)])
    return lines[:height]


def _chosen(blocks: Sequence[Block], height: int) -> list[Block]:
    """Those that fit, the important ones first; in the order they stand in."""
    fitting: list[Block] = []
    for block in sorted(blocks, key=lambda block: block.importance):
        if sum(one.least for one in fitting) + block.least <= height:
            fitting.append(block)
    return [block for block in blocks if block in fitting]


def _grow(blocks: Sequence[Block], heights: dict[int, int], spare: int, *, wanted: Callable[[Block], int]) -> int:
    """Give the more important blocks first what they want; what is left."""
    for block in sorted(blocks, key=lambda block: block.importance):
        more = max(0, min(wanted(block) - heights[id(block)], spare))
        heights[id(block)] += more
        spare -= more
    return spare


def beside(left: Sequence[Text], right: Sequence[Text], *, left_width: int, gap: int) -> list[Text]:
    """Two stacks next to each other."""
    rows = max(len(left), len(right))
    empty = Text(end="")
    return [
        Text(" " * gap, end="").join([padded(left[i] if i < len(left) else empty, left_width), right[i]])
        if i < len(right)
        else left[i]
        for i in range(rows)
    ]
