"""The whole view in any size, with any text, in any encoding."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from rlctl.live.glyphs import ASCII, UNICODE, Glyphs
from rlctl.live.reporter import Picture
from rlctl.live.view import frame
from rlctl.printable import one_line, printable
from tests.live.story import HOSTILE, metrics, state

SIZES = [(width, height) for width in (39, 40, 59, 79, 99, 135, 136, 159, 239) for height in (1, 2, 5, 11, 23, 44, 80)]


def plain(*arguments: object, glyphs: Glyphs = UNICODE, **changed: object) -> list[str]:
    width, height = arguments
    run = state(**changed)  # type: ignore[arg-type]
    return [text.plain for text in frame(run, width, height, glyphs=glyphs, now=20.0)]  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["3 + 4 = 7\n#### 7", HOSTILE], ids=["plain", "hostile"])
@pytest.mark.parametrize("steps", [0, 1, 12, 300])
def test_the_view_fits_every_size(steps: int, text: str) -> None:
    for glyphs in (UNICODE, ASCII):
        run = state(steps, total=400, text=text)
        for width, height in SIZES:
            lines = frame(run, width, height, glyphs=glyphs, now=20.0)
            assert 1 <= len(lines) <= height, (width, height)
            assert max(line.cell_len for line in lines) <= width, (width, height)


def test_everything_that_is_asked_for_is_there_at_80_columns_and_at_160() -> None:
    wanted = [
        "step 12/40", "so far, about", "step 13: sample", "grad norm", "score ", "reward ", "length ",
        "entropy ", "KL ", "clip frac", "mismatch", "sample 0.60 s 60 %", "score 0.10 s 10 %",
        "update 0.20 s 20 %", "sync 0.05 s 5 %",
        "20,123 tok/s", "MFU 12.3 %", "memory 1.2 GiB", "none solved 10 %  some 60 %  all 30 %", "no sign of trouble",
        "completion of step 12: reward 1", "> 3 + 4", "#### 7",
    ]  # fmt: skip
    for size in [(79, 23), (159, 44)]:
        text = "\n".join(plain(*size))
        assert [word for word in wanted if word not in text] == [], size


def test_what_matters_most_stays_on_a_low_terminal() -> None:
    assert plain(79, 1)[0].startswith("step 12/40")
    five = "\n".join(plain(79, 5))
    assert "no sign of trouble" in five
    assert "0.520" in five  # the score of the last step
    assert "completion of" not in five


def test_without_unicode_only_ascii_is_drawn() -> None:
    assert "\n".join(plain(159, 44, glyphs=ASCII, text=HOSTILE)).isascii()


def test_a_terminal_receives_no_control_of_a_model() -> None:
    """All escapes in what is written are those of the view itself: colours, and switching line wrap off and on."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=160, height=45, color_system="standard")
    console.print(Picture(frame(state(text=HOSTILE), 159, 44, glyphs=UNICODE, now=20.0)))
    rest = stream.getvalue().replace("\x1b[?7l", "").replace("\x1b[?7h", "")
    for codes in ("1", "32", "36", "34", "35", "31", "33", "90", "1;33", "0"):
        rest = rest.replace(f"\x1b[{codes}m", "")
    assert "\x1b" not in rest
    assert all(character.isprintable() or character == "\n" for character in rest)


def test_markup_in_a_completion_is_text() -> None:
    assert any("[/red] [bold] [link=http://x]" in line for line in plain(159, 44, text="[/red] [bold] [link=http://x]"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb", "a    b"), ("\x1b[31mred", "\\x1b[31mred"), ("a\r\nb", "a\nb"), ("a\rb", "a\\rb"),
        ("\x07\x00", "\\x07\\x00"),
        ("\x9b1m", "\\x9b1m"), ("\u202eabc", "\\u202eabc"), ("a\u200db", "a\\u200db"), ("\ufeff", "\\ufeff"),
        ("\u2028", "\\u2028"), ("\ud800", "\\ud800"), ("\U000e0041", "\\U000e0041"), ("\u00a0", " "), ("❤\ufe0f", "❤"),
        ("漢字 שלום", "漢字 שלום"), ("e\u0301", "e\u0301"),
        ("a\u0301\u0302\u0303\u0304", "a\u0301\u0302"), ("[/red]", "[/red]"),
    ],
)  # fmt: skip
def test_what_a_terminal_would_obey_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_an_encoding_without_a_letter_gets_its_escape() -> None:
    assert printable("é漢", encoding="latin-1") == "é\\u6f22"
    assert printable("é漢", encoding="ascii") == "\\xe9\\u6f22"
    assert one_line("a\n b\t c") == "a b c"


def test_a_picture_costs_a_few_milliseconds_even_of_a_long_run() -> None:
    run = state(2000, total=4000, text=HOSTILE)
    run.history = [metrics(step) for step in range(1, 2001)]
    costs = []
    for _ in range(5):
        begun = time.thread_time()
        frame(run, 159, 44, glyphs=UNICODE, now=20.0)
        costs.append(time.thread_time() - begun)
    assert min(costs) < 0.05  # about 0.01 on one core; a tenth of a second would be felt
