"""Text of models and files, made safe to print: nothing in it moves a cursor, colours a line or turns its direction."""

from __future__ import annotations

import unicodedata

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Control, format (bidirectional overrides, zero-width), surrogate halves, private, unassigned, line separators."""

JOINERS = "\u200c\u200d\ufe0f"
"""Format characters that scripts and emoji are written with; they change nothing outside their word."""


def printable(text: str, *, one_line: bool = False) -> str:
    r"""The text with an escape, as `\x1b`, for each character that is not seen, but for line ends and tabs.

    With `one_line` these are escaped too.
    """
    kept = JOINERS if one_line else JOINERS + "\n\t"
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in kept or unicodedata.category(c) not in HIDDEN else _escape(c) for c in text)


def _escape(character: str) -> str:
    common = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    if common:
        return common
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shortened(text: str, width: int) -> str:
    """At most `width` characters, the cut marked."""
    return text if len(text) <= width else text[: max(0, width - 3)] + "..."
