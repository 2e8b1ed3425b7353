"""Lines of styled text, cut to a width that is counted in cells of the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

DIM = "bright_black"
HEAD = "bold"

Part = str | tuple[str, str]
"""Text, or text with its style."""


def line(*parts: Part) -> Text:
    """One line; nothing in it is read as markup."""
    text = Text(no_wrap=True, end="")
    for part in parts:
        if isinstance(part, str):
            text.append(part)
        else:
            text.append(part[0], style=part[1])
    return text


def cut(text: Text, width: int, *, ellipsis: str) -> Text:
    """The line in at most `width` cells."""
    if text.cell_len <= width:
        return text
    text = text.copy()
    text.truncate(max(0, width - len(ellipsis)))
    text.append(ellipsis)
    return text


def padded(text: Text, width: int) -> Text:
    """The line in exactly `width` cells, where it is not longer."""
    text = text.copy()
    text.append(" " * max(0, width - text.cell_len))
    return text


def label(text: str, width: int) -> str:
    return set_cell_size(text, width)


def folded(parts: Sequence[Part], width: int, *, most: int, ellipsis: str) -> list[Text]:
    """Parts in a row that stay whole where they can: as many lines as it takes, at most `most`."""
    lines: list[list[Part]] = [[]]
    used = 0
    for part in parts:
        size = cell_len(part if isinstance(part, str) else part[0])
        gap = 2 if lines[-1] else 0
        if lines[-1] and used + gap + size > width:
            lines.append([])
            used, gap = 0, 0
        lines[-1] += ["  ", part] if gap else [part]
        used += gap + size
    return [cut(line(*row), width, ellipsis=ellipsis) for row in lines[:most]]


def wrapped(text: str, width: int, *, style: str = "") -> list[Text]:
    """A text of several lines at words, by cells; what is longer than a line is broken."""
    rows: list[Text] = []
    for paragraph in text.split("\n"):
        row, used = "", 0
        for word in _words(paragraph, width):
            size = cell_len(word)
            if row and used + 1 + size > width:
                rows.append(line((row, style)))
                row, used = "", 0
            row, used = (f"{row} {word}", used + 1 + size) if row else (word, size)
        rows.append(line((row, style)))
    return rows


def _words(paragraph: str, width: int) -> list[str]:
    """The words, those wider than a line in pieces."""
    words: list[str] = []
    for word in paragraph.split(" "):
        if cell_len(word) <= width:
            words.append(word)
            continue
        piece, used = "", 0
        for character in word:
            size = cell_len(character)
            if used + size > width:
                words.append(piece)
                piece, used = "", 0
            piece += character
            used += size
        words.append(piece)
    return words
