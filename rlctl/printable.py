"""Text of models and of other people's code, made harmless for a terminal.

What would move the cursor, colour, ring, reorder a line or take another width than it seems to is written as an escape
(`\\x1b`, `\\u202e`); letters of all scripts stay as they are.
"""

from __future__ import annotations

import re
import unicodedata

_NOT_PLAIN = re.compile(r"[^\x20-\x7e\n]")
_MARK = r"[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_MANY_MARKS = re.compile(f"({_MARK}{{2}}){_MARK}+")
"""Marks piled on one letter, beyond the two that a language may need: they spill over the lines above and below."""

_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Controls, format characters (the bidirectional and zero-width ones among them), lone surrogates, private and unknown
characters, and separators of lines."""

_VARIATION_SELECTORS = range(0xFE00, 0xFE10)
"""They change the width of the sign before, and terminals do not agree on it."""


def printable(text: str, *, encoding: str = "utf-8") -> str:
    """The text in characters that a terminal of that encoding shows as they are; line breaks stay, tabs are spaces."""
    plain = _NOT_PLAIN.sub(_shown, _MANY_MARKS.sub(r"\1", text.replace("\r\n", "\n")))
    return plain if encoding.lower().startswith("utf") else plain.encode(encoding, "backslashreplace").decode(encoding)


def one_line(text: str, *, encoding: str = "utf-8") -> str:
    """The same on a single line."""
    return " ".join(printable(text, encoding=encoding).split())


def _shown(match: re.Match[str]) -> str:
    character = match.group()
    if character == "\t":
        return "    "
    if ord(character) in _VARIATION_SELECTORS:
        return ""
    if unicodedata.category(character) in _UNPRINTABLE:
        return character.encode("unicode_escape").decode()
    return " " if unicodedata.category(character) == "Zs" else character
