"""What is made of text of models before it is printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.runs.printable import printable
from rlctl.runs.tables import markdown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"), ("a\nb\tc", "a\nb\tc"), ("\x1b[2J", "\\x1b[2J"), ("a\rb", "a\\rb"), ("\x00", "\\x00"),
        ("\x9b31m", "\\x9b31m"), ("\ud800", "\\ud800"), ("\u202egnp", "\\u202egnp"), ("\u2028", "\\u2028"),
        ("\u200b", "\\u200b"), ("\ufeff", "\\ufeff"), ("\U000e0041", "\\U000e0041"), ("数学 é", "数学 é"),
        ("\U0001f469\u200d\U0001f52c", "\U0001f469\u200d\U0001f52c"),
    ],
)  # fmt: skip
def test_what_is_not_seen_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_one_line_is_one_line_and_can_be_encoded(text: str) -> None:
    shown = printable(text, one_line=True)
    assert len(shown.splitlines()) <= 1
    shown.encode()


def test_a_cell_of_markdown_ends_no_column_and_is_no_html() -> None:
    assert markdown([["h"], ["a|b\n<script>`"]])[2] == "| a\\|b\\n&lt;script>\\` |"
