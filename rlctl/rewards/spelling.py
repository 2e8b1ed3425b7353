"""One spelling for each thing a number is written with: digits, signs, separators, fractions, LaTeX.

`plain` turns typographic and LaTeX forms into the ASCII that `numbers.py` reads:
  - digits of other scripts and of mathematical alphabets; superscripts behind a digit are its exponent;
  - U+2212 and the hyphens and dashes up to U+2013 are minus signs (an em dash separates words, so it is none);
  - every space that may separate thousands is `THIN`; characters without width are dropped;
  - `\\frac{3}{4}`, `\\frac34` and a fraction's own sign, U+00BD and its like, `3 \\times 10^{6}`, degrees.

Time is linear in the text, which callers cut to a window before.
"""

from __future__ import annotations

import re
import unicodedata

THIN = "\u00a0"
"""Stands for every space that separates thousands: no-break, narrow no-break, thin, figure, and LaTeX's."""

ZEROS = (0x0660, 0x06F0, 0x0966, 0x09E6, 0x0E50, 0xFF10, *range(0x1D7CE, 0x1D7FF, 10))
"""Zero of Arabic, Persian, Devanagari, Bengali, Thai, full-width and the five mathematical alphabets' digits."""

OTHER_DIGITS = {chr(zero + digit): str(digit) for zero in ZEROS for digit in range(10)}

_VULGAR = "\u00bc\u00bd\u00be\u2150\u2151\u2152" + "".join(map(chr, range(0x2153, 0x215F)))

_SPELLINGS: dict[str, str] = {
    **OTHER_DIGITS,
    # Apart from what stands before, so that one and a half is a mixed number and not eleven halves.
    **{char: " " + unicodedata.normalize("NFKC", char).replace("\u2044", "/") for char in _VULGAR},
    **dict.fromkeys("\u202f\u2009\u2007\u2005\u2006\u2008\u200a", THIN),
    **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\u2796\uff0d\ufe63\ufe58", "-"),
    **dict.fromkeys("\u2044\u2215\uff0f", "/"),
    **dict.fromkeys("\u2018\u2019\uff07", "'"),
    **dict.fromkeys("\u200b\u200c\u200d\u200e\u200f\u2060\u00ad\ufeff\ufe0f", ""),
    **dict(zip("\u066b\u066c\uff0b\uff0c\uff0e\uff04\uff05\uff1a\uff1d\u3000", ".,+,.$%:= ", strict=True)),
}
_TRANSLATION = str.maketrans(_SPELLINGS)
_RAISED = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
_LOWERED = str.maketrans(_RAISED + "\u207b\u207a", "0123456789-+")
_SUPERSCRIPT = re.compile(rf"(?<=[0-9])[\u207b\u207a]?[{_RAISED}]+")

_LATEX = re.compile(r"[\\{^~]")
_NO_INK = re.compile(
    r"\\!|\\(?:left|right|displaystyle|textstyle|bf|rm|small|large|Large|LARGE|huge|Huge)(?![A-Za-z])"
    r"|\\(?:text)?color ?\{[A-Za-z]{1,20}\}"
)
_BRACED_COMMA = re.compile(r"(?<=[0-9])\{([,.])\}(?=[0-9])")
_LATEX_SPACE = re.compile(r"(?<=[0-9])(?:\\[,;: ]|~)(?=[0-9])")
_DEGREES = re.compile(r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![a-z]))|\\degree(?![a-z])")
_ORDINAL = re.compile(r"(?<=[0-9]) ?\^ ?\{? ?(?:\\text\{)?(?=st|nd|rd|th)")
_EXPONENT = r" ?\^ ?(?:\{ ?(?P<braced>[-+]?[0-9]{1,4}) ?\}|(?P<bare>[-+]?[0-9]{1,4})(?![0-9]))"
LATEX_GAP = r"(?: |~|\\[,;:! ])*"
_TIMES_TEN = re.compile(
    rf"(?<=[0-9]){LATEX_GAP}(?:\\times|\\cdot|[\u00d7\u00b7x*]){LATEX_GAP}(?:10|\{{10\}}){_EXPONENT}"
)
_POWER_OF_TEN = re.compile(rf"(?<![0-9.,/*x^\u00d7\u00b7])10{_EXPONENT}")
_BEFORE_FRACTION = re.compile(r"(?<=[0-9])(?:\\[,;: !]| )*(?=\\[dtc]?frac[ {0-9])")
_PART = r"(?:\{ ?([-+]?[0-9.,]+) ?\}| ?([0-9]))"
_FRACTION = re.compile(rf"(?P<sign>[-+] ?)?\\[dtc]?frac ?{_PART} ?{_PART}")


def plain(text: str) -> str:
    """The text with one spelling for each digit, sign, separator, fraction and power of ten."""
    if not text.isascii():
        text = text.translate(_TRANSLATION)
        text = _SUPERSCRIPT.sub(lambda found: f"^{{{found[0].translate(_LOWERED)}}}", text)
    return _without_latex(text) if is_latex(text) else text


def is_latex(text: str) -> bool:
    """Whether anything in it may be LaTeX: a command, a group, a power or a tie."""
    return _LATEX.search(text) is not None


def _without_latex(text: str) -> str:
    text = _NO_INK.sub("", text)
    text = _BRACED_COMMA.sub(r"\1", text)
    text = _LATEX_SPACE.sub(THIN, text)
    text = _DEGREES.sub("\u00b0", text)
    text = _ORDINAL.sub("", text)
    text = _TIMES_TEN.sub(lambda found: f"e{found['braced'] or found['bare']}", text)
    text = _POWER_OF_TEN.sub(lambda found: f"1e{found['braced'] or found['bare']}", text)
    text = _BEFORE_FRACTION.sub(" ", text)
    return _FRACTION.sub(_fraction, text)


def _fraction(found: re.Match[str]) -> str:
    """`-\\frac{3}{4}` -> `-3/4`. Signs within are gathered in front; behind a whole number there can be none."""
    sign = found["sign"] or ""
    over, under = found[2] or found[3], found[4] or found[5]
    negative = (over.startswith("-") + under.startswith("-")) % 2 == 1
    over, under = over.lstrip("+-"), under.lstrip("+-")
    if not negative:
        return f"{sign}{over}/{under}"
    # Two signs in a row are left for the reader of numbers to refuse, but for the usual `-\frac{-3}{4}`.
    return f"{over}/{under}" if sign.startswith("-") else f"-{over}/{under}"
