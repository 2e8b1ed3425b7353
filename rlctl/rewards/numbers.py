"""Read a number out of text, exactly: what counts as one, and when two are the same.

  - thousands separators in groups of three (`6,400`, `6{,}400`, `6\\,400`, `6'400`, a no-break space; at the start of
    an answer a plain space too); `6,40` and `1,2,3` are lists of numbers, never 640 or 123; so is `[3.5, 41.25]`;
  - decimals and exponents (`46.`, `.5`, `4.6e1`, `4.6 \\times 10^{1}`), fractions (`1/2`, `\\frac{1}{2}`, `2 1/2`), a
    sign, leading zeros; other spellings of these are in `spelling.py`;
  - currency, percent signs and units are ignored: `$46.00`, `USD 46`, `46%` and `46 books` are all 46;
  - what goes on as arithmetic (`58*`, `3 + 4`, `5-6`, `12:30`, `7\\sqrt{2}`, `2**3`, `3x + 2`) is not a number.

Nothing here raises on any text, and time is linear: only `WINDOW_CHARS` characters are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from rlctl.rewards.spelling import LATEX_GAP, OTHER_DIGITS, THIN, is_latex, plain

Numbers = tuple[Fraction, ...]
"""What an answer says: one number, or the members of a list."""

MAX_NUMBER_CHARS = 1000
"""Longest number that is read: beyond any answer, below the 4,300 digits at which int() refuses."""

WINDOW_CHARS = 2 * MAX_NUMBER_CHARS
"""Text looked at around a number. Twice a number, so that none is cut: `_plain` shortens one by a third at most."""

GLANCE_CHARS = 48
"""Text looked at first before a last number: enough for most, and much quicker than `WINDOW_CHARS`."""

MAX_EXPONENT = 1000
"""Largest power of ten that is read: 1e999999999 would fill the memory."""

RELATIVE_TOLERANCE = Fraction(1, 10**12)
"""Forgives the last digits of a double (about 1e-16 an operation), and nothing a person would write differently."""


NOISY = 10**15
"""A numerator or denominator of that size has the 16 or 17 digits of a printed double; shorter numbers are meant."""


@dataclass(frozen=True, slots=True)
class Leading:
    """The number or list that a text starts with, and the text behind it."""

    numbers: Numbers
    rest: str


def same_number(one: Fraction, other: Fraction) -> bool:
    """Equal; or one is a double's printed noise of the other (0.30000000000000004 is 0.3, 46.001 is not 46)."""
    if one == other:
        return True
    if one.denominator == other.denominator == 1 or max(map(_size, (one, other))) < NOISY:
        return False
    return abs(one - other) <= RELATIVE_TOLERANCE * max(abs(one), abs(other))


def _size(number: Fraction) -> int:
    return max(abs(number.numerator), number.denominator)


def read_leading(text: str) -> Leading | None:
    """The number or `[list]` the text starts with, after at most a currency sign, markup or a short label."""
    text = plain(text[:WINDOW_CHARS])
    lead = _LEAD.match(text)
    # Cut off, not only passed over: the sign of `\\text{Total: }-7` must not see the brace before it.
    text = _tight_sign(text[lead.end() :] if lead else text)
    if text.startswith("["):
        inside, closed, rest = text[1:].partition("]")
        members = _list_members(inside) if closed else None
        return Leading(members, rest) if members else None
    spaced = _SPACED_THOUSANDS.match(text)
    if spaced:
        text = spaced[0].replace(" ", THIN) + text[spaced.end() :]
    found = _NUMBER.match(text)
    emphasised = lead is not None and "*" in lead[0]
    if found is None or found.end() > MAX_NUMBER_CHARS or _goes_on(found, emphasised=emphasised):
        return None
    numbers = _value(found)
    return Leading(numbers, text[found.end() :]) if numbers else None


def _tight_sign(text: str) -> str:
    """`- 5` and `minus 5` as `-5`: in front of an answer a sign is no operation."""
    loose = _LOOSE_SIGN.match(text)
    return (loose["sign"] or "-") + text[loose.end() :] if loose else text


def read_last(text: str) -> Numbers | None:
    """The last number in the text, or the `[list]` it closes; None too when arithmetic follows it."""
    last = max(text.rfind(digit) for digit in (_DIGITS if text.isascii() else _ALL_DIGITS))
    window, found = _last_match(text, last, before=GLANCE_CHARS)
    if found is None or not _stands_alone(window[: found.start()]) or set("]*") & set(window[found.end() :]):
        window, found = _last_match(text, last, before=WINDOW_CHARS)
    if found is None or _is_power(found) or _goes_on(found, emphasised=_opens_emphasis(window[: found.start()])):
        return None
    _, opened, inside = window[: found.end()].rpartition("[")
    if opened and window[found.end() :].lstrip(" %").startswith("]") and (members := _list_members(inside)):
        return members
    return _value(found)


def _last_match(text: str, last: int, *, before: int) -> tuple[str, re.Match[str] | None]:
    """A window around the last digit, and the last number in it."""
    window = _UNIT_POWER.sub("", plain(text[max(0, last - before) : last + 100]))
    found = None
    for candidate in _NUMBER.finditer(window):
        found = candidate
    return window, found


def _stands_alone(before: str) -> bool:
    """Whether no number and no LaTeX reaches from the start of a short window into what follows: words are between."""
    return _WORDS.search(before) is not None and not is_latex(before)


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


_DIGITS = "0123456789"
_ALL_DIGITS = _DIGITS + "".join(OTHER_DIGITS)

_SYMBOL = r"\\?[$\u00a2-\u00a5\u0e3f\u20a0-\u20c0]"
_CURRENCY = (
    rf"(?:(?:US|CA|AU|NZ|HK|SG|NT|[ACRS])?{_SYMBOL}"
    r"|(?:USD|EUR|GBP|INR|JPY|CNY|RMB|CAD|AUD|CHF|Rs\.?)(?=[ \\0-9.+-])"
    r"|\\(?:pounds|euro|yen|textdollar)(?:\{\})?(?![A-Za-z]))"
)
_RUN = rf"(?:[0-9]+(?:[.,_'{THIN}][0-9]+)*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_NUMBER = re.compile(
    # A sign after a digit, letter or closing bracket is an operation or a hyphen, not a sign.
    rf"(?P<sign>(?<![0-9A-Za-z)\]}}%])[-+])?(?:{_CURRENCY} ?)?"
    rf"(?:(?P<whole>[0-9]{{1,9}}) (?=[0-9]{{1,3}} ?/ ?[0-9]))?(?P<over>{_RUN}(?: ?/ ?{_RUN})*)"
)
_UNFINISHED = re.compile(
    rf"{LATEX_GAP}"
    r"(?:[+^\u00d7\u00f7\u00b1\u221a\u03c0]|\\(?:times|cdot|div|pm|mp|sqrt|pi|[dtc]?frac|over|binom)(?![a-z])"
    r"|(?P<power>\*\* *[0-9(])|(?P<star>\*)(?!\*)|[-/:] *[-+(]? *(?:[0-9$]|\.[0-9])"
    r"|[-/] *\\(?:[dtc]?frac|sqrt|pi)(?![a-z])|[-/=] *(?:\n|\Z)"
    r"|[xyz] *[-+=^]|_\{|\.?\\(?:overline|bar|dot)(?![a-z]))"
)
_UNIT_POWER = re.compile(
    r"(?<=[A-Za-z}])\^ ?(?:\{ ?-?[0-9]{1,2} ?\}|-?[0-9])(?![0-9])"
    r"|(?:(?<=[0-9 /][kcdm]m)|(?<=[0-9 /]m)|(?<=[0-9 /]ft))[23](?![A-Za-z0-9])"
)
_POWER_BEFORE = re.compile(r"\^ ?\{? ?\Z|[0-9)] ?\*\* ?\Z")
_OPENING_STAR = re.compile(r"(?<![0-9A-Za-z*)])\*{1,3}(?![\s*])")
_CLOSING_STAR = re.compile(r"(?<![\s*])\*{1,3}(?![0-9A-Za-z*])")
_MARKUP = (
    rf"(?:[\s*_`\"'(~\u2248{{}}\u201c]|\\[({{\[,;: ]|\\q?quad(?![a-z])|{_CURRENCY}"
    r"|\\(?:(?:text|math)[a-z]*|mbox|fbox|boxed)\{"
    r"|</?[A-Za-z]{1,10}>)*"
)
_LEAD = re.compile(
    rf"{_MARKUP}(?:(?:\\?[A-Za-z][A-Za-z ]{{0,40}}\}}? ?(?:[:=\u2248]|\\approx|is )|[:=]){_MARKUP})?"
    rf"(?:(?:about|approximately|approx\.?|roughly|around|exactly|only|\\approx) {_MARKUP})?",
    re.IGNORECASE,
)
_LOOSE_SIGN = re.compile(
    rf"(?:(?P<sign>[-+])(?:\s|\\[,;: ]|[({{])+|(?:minus|negative) +)(?=(?:{_CURRENCY} ?)?[0-9.])", re.IGNORECASE
)
_WORDS = re.compile(r"[a-df-z][a-z ]*\s|\n")
_SPACED_THOUSANDS = re.compile(r"[-+]?[1-9][0-9]{0,2}(?: [0-9]{3})+(?! ?[0-9/]|,[0-9])")
_PLAIN_NUMBER = re.compile(r"[0-9]*(?:\.[0-9]+)?")
_GROUPED_NUMBER = re.compile(rf"[1-9][0-9]{{0,2}}([,_'{THIN}])[0-9]{{3}}(?:\1[0-9]{{3}})*(?:\.[0-9]+)?")
_SEPARATORS = str.maketrans("", "", f",_'{THIN}")


def _goes_on(found: re.Match[str], *, emphasised: bool) -> bool:
    """Whether arithmetic follows the number. A star that closes emphasis is none: `*58*`, `**58**`."""
    follows = _UNFINISHED.match(found.string, found.end())
    if follows and (follows["star"] or follows["power"]):
        return not emphasised
    return follows is not None


def _opens_emphasis(before: str) -> bool:
    """Whether a star before the number, on its line, is still open."""
    line = before.rpartition("\n")[2]
    return len(_OPENING_STAR.findall(line)) > len(_CLOSING_STAR.findall(line))


def _is_power(found: re.Match[str]) -> bool:
    """Whether the number is an exponent: what is meant is then another number."""
    return _POWER_BEFORE.search(found.string, max(0, found.start() - 5), found.start()) is not None


def _value(found: re.Match[str]) -> Numbers | None:
    """A matched number's value; several for a run of commas that are no thousands separators."""
    if len(found[0]) > MAX_NUMBER_CHARS:
        return None
    parts = [part.strip(" ") for part in found["over"].split("/")]
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
    value = Fraction(mantissa.translate(_SEPARATORS))
    digits = exponent.lstrip("+-0")
    if not digits:
        return value
    if len(digits) > len(str(MAX_EXPONENT)) or int(digits) > MAX_EXPONENT:
        return None
    return value * Fraction(10) ** (-int(digits) if exponent.startswith("-") else int(digits))
