"""Read a number out of text, exactly: what counts as one, and when two are the same.

  - thousands separators in groups of three (`6,400`, `6{,}400`, `6\\,400`, a no-break space); `6,40` and `1,2,3`
    are lists of numbers, never 640 or 123; `[3.5, 41.25]` is a list too;
  - decimals and exponents (`46.`, `.5`, `4.6e1`), fractions (`1/2`, `\\frac{1}{2}`, `2 1/2`), a sign, leading zeros;
  - U+2212 and U+2013 are minus signs, full-width digits are digits; superscripts are not;
  - currency signs, percent signs and units are ignored: `$46.00`, `46%` and `46 books` are all 46;
  - what goes on as arithmetic (`58*`, `3 + 4`, `5-6`, `12:30`) is not a number.

Nothing here raises on any text, and time is linear: only `WINDOW_CHARS` characters are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

Numbers = tuple[Fraction, ...]
"""What an answer says: one number, or the members of a list."""

MAX_NUMBER_CHARS = 1000
"""Longest number that is read: beyond any answer, below the 4,300 digits at which int() refuses."""

WINDOW_CHARS = 2 * MAX_NUMBER_CHARS
"""Text looked at around a number. Twice a number, so that none is cut: `_plain` shortens one by a third at most."""

MAX_EXPONENT = 1000
"""Largest power of ten that is read: 1e999999999 would fill the memory."""

RELATIVE_TOLERANCE = Fraction(1, 10**12)
"""Forgives the last digits of a double (about 1e-16 an operation), and nothing a person would write differently."""


@dataclass(frozen=True, slots=True)
class Leading:
    """The number or list that a text starts with, and the text behind it."""

    numbers: Numbers
    rest: str


def same_number(one: Fraction, other: Fraction) -> bool:
    """Equal; or, unless both are whole, equal to 12 digits (0.30000000000000004 is 0.3, 46.001 is not 46)."""
    if one == other:
        return True
    if one.denominator == other.denominator == 1:
        return False
    return abs(one - other) <= RELATIVE_TOLERANCE * max(abs(one), abs(other))


def read_leading(text: str) -> Leading | None:
    """The number or `[list]` the text starts with, after at most a currency sign, markup or a short label."""
    text = _plain(text[:WINDOW_CHARS])
    lead = _LEAD.match(text)
    start = lead.end() if lead else 0
    if text.startswith("[", start):
        inside, closed, rest = text[start + 1 :].partition("]")
        members = _list_members(inside) if closed else None
        return Leading(members, rest) if members else None
    found = _NUMBER.match(text, start)
    if found is None or found.end() > MAX_NUMBER_CHARS or _goes_on(found):
        return None
    numbers = _value(found)
    return Leading(numbers, text[found.end() :]) if numbers else None


def read_last(text: str) -> Numbers | None:
    """The last number in the text, or the `[list]` it closes; None too when arithmetic follows it."""
    last = max(text.rfind(digit) for digit in _DIGITS)
    window = _plain(text[max(0, last - WINDOW_CHARS) : last + 100])
    found = None
    for candidate in _NUMBER.finditer(window):
        found = candidate
    if found is None or _goes_on(found):
        return None
    _, opened, inside = window[: found.end()].rpartition("[")
    if opened and window[found.end() :].lstrip(" %").startswith("]") and (members := _list_members(inside)):
        return members
    return _value(found)


def show(numbers: Sequence[Fraction]) -> str:
    """Numbers as short text, whole ones without a point."""
    shown = [str(number) if number.denominator == 1 else _show_broken(number) for number in numbers]
    return shorten(shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]")


def shorten(text: str) -> str:
    """The text on one line of at most 40 characters."""
    text = " ".join(text[:200].split())
    return text if len(text) <= 40 else f"{text[:40]}..."


def _show_broken(number: Fraction) -> str:
    try:
        return f"{float(number):.12g}"
    except OverflowError:
        return str(number)


_DIGITS = "0123456789" + "".join(map(chr, range(0xFF10, 0xFF1A)))

_THIN = "\u00a0"
"""Stands for every space that separates thousands: no-break, narrow no-break, thin, figure, and LaTeX's `\\,`."""

_SPELLINGS: dict[str, str] = {
    **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
    **dict.fromkeys("\u202f\u2009\u2007", _THIN),
    **dict.fromkeys("\u2212\u2013\uff0d\ufe63", "-"),
    **dict(zip("\uff0b\uff0c\uff0e\uff04\uff05\uff1a\uff0f\u3000", "+,.$%:/ ", strict=True)),
}
_TRANSLATION = str.maketrans(_SPELLINGS)

_CURRENCY = r"\\?[$\u20ac\u00a3\u00a5\u20b9]"
_RUN = rf"(?:[0-9]+(?:[.,{_THIN}][0-9]+)*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_NUMBER = re.compile(
    # A sign after a digit, letter or closing bracket is an operation or a hyphen, not a sign.
    rf"(?P<sign>(?<![0-9A-Za-z)\]}}%])[-+])?(?:{_CURRENCY})?"
    rf"(?:(?P<whole>[0-9]{{1,3}}) (?=[0-9]{{1,3}}/[0-9]))?(?P<over>{_RUN}(?:/{_RUN})*)"
)
_UNFINISHED = re.compile(
    r" *(?:[+^\u00d7\u00f7]|\\times|\\cdot|\\div|(?P<star>\*)(?!\*)|[-/:] *[0-9.$]|[-/=] *(?:\n|\Z))"
)
_MARKUP = rf"(?:[\s*_`\"'(~\u2248{{}}]|\\[(\[]|{_CURRENCY}|\\(?:text|textbf|mathbf|mathrm)\{{)*"
_LEAD = re.compile(rf"{_MARKUP}(?:[A-Za-z][A-Za-z ]{{0,40}}(?:[:=]|is ){_MARKUP})?")
_PLAIN_NUMBER = re.compile(r"[0-9]*(?:\.[0-9]+)?")
_GROUPED_NUMBER = re.compile(rf"[1-9][0-9]{{0,2}}([,{_THIN}])[0-9]{{3}}(?:\1[0-9]{{3}})*(?:\.[0-9]+)?")


def _plain(text: str) -> str:
    """The text with one spelling for each digit, sign, separator and fraction."""
    text = text.translate(_TRANSLATION)
    if "\\" not in text and "{" not in text:
        return text
    text = re.sub(r"(?<=[0-9])(?:\{,\}|,\\!)(?=[0-9])", ",", text)
    text = re.sub(r"(?<=[0-9])\\,(?=[0-9])", _THIN, text)
    text = re.sub(r"(?<=[0-9]) ?(?=\\[dt]?frac\{)", " ", text)
    return re.sub(r"\\[dt]?frac\{([0-9.,]+)\}\{([0-9.,]+)\}", r"\1/\2", text)


def _goes_on(found: re.Match[str]) -> bool:
    """Whether arithmetic follows the number. A star that closes emphasis is none: `*58*`, `**58**`."""
    follows = _UNFINISHED.match(found.string, found.end())
    if follows and follows["star"]:
        return not found.string.endswith("*", 0, found.start())
    return follows is not None


def _value(found: re.Match[str]) -> Numbers | None:
    """A matched number's value; several for a run of commas that are no thousands separators."""
    if len(found[0]) > MAX_NUMBER_CHARS:
        return None
    parts = found["over"].split("/")
    negative = found["sign"] == "-"
    if len(parts) == 1 and (members := _run_members(parts[0])):
        return (-members[0] if negative else members[0], *members[1:])
    values = [_decimal(part) for part in parts]
    if len(values) != 2 or values[0] is None or not values[1]:
        return None
    value = values[0] / values[1]
    if found["whole"] is not None:
        if value >= 1:
            return None
        value += int(found["whole"])
    return (-value if negative else value,)


def _run_members(run: str) -> Numbers | None:
    value = _decimal(run)
    if value is not None:
        return (value,)
    return _all([_decimal(part) for part in run.split(",")])


def _list_members(inside: str) -> Numbers | None:
    """The numbers between two brackets. Commas separate; `, ` does where there is one, so thousands may stand there."""
    parts = inside.split(", " if ", " in inside else ",")
    return _all([_member(part.strip()) for part in parts])


def _member(part: str) -> Fraction | None:
    found = _NUMBER.match(part)
    if found is None or part[found.end() :].strip(" %"):
        return None
    numbers = _value(found)
    return numbers[0] if numbers and len(numbers) == 1 else None


def _all(values: Sequence[Fraction | None]) -> Numbers | None:
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None


def _decimal(run: str) -> Fraction | None:
    """`1,234.5e3` exactly; None when the separators are not thousands or the number is absurdly large."""
    mantissa, _, exponent = run.lower().partition("e")
    if not (_PLAIN_NUMBER.fullmatch(mantissa) or _GROUPED_NUMBER.fullmatch(mantissa)):
        return None
    value = Fraction(mantissa.replace(",", "").replace(_THIN, ""))
    digits = exponent.lstrip("+-0")
    if not digits:
        return value
    if len(digits) > len(str(MAX_EXPONENT)) or int(digits) > MAX_EXPONENT:
        return None
    return value * Fraction(10) ** (-int(digits) if exponent.startswith("-") else int(digits))
