"""The signs that bars and curves are made of, for terminals that show Unicode and for those that do not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """`levels` rise; `phases` differ without colour too."""

    encoding: str
    levels: str
    done: str
    left: str
    phases: str
    cut: str


UNICODE = Glyphs("utf-8", levels="▁▂▃▄▅▆▇█", done="━", left="─", phases="█▓▒░▚·", cut="…")
ASCII = Glyphs("ascii", levels="_.-:=+*#", done="#", left="-", phases="#=+-:.", cut="~")


def glyphs_for(encoding: str) -> Glyphs:
    """Those that an encoding can write."""
    try:
        (UNICODE.levels + UNICODE.done + UNICODE.left + UNICODE.phases + UNICODE.cut).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE
