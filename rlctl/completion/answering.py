"""`rlctl __complete SHELL ...`: from the words of a line to what its last word can become.

The first line printed is `files` where the shell should offer files as well, else `words`; then a value a line, with
its meaning after a tab. Typer's own scripts are not used: bash's cuts words at `=` and `:`, as in `trainer.lr=` and
names of runs, and zsh's evaluates what it is answered.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer._completion_classes import BashComplete  # resolves words to parameters, for every shell
from typer.main import get_command


def script(shell: str) -> str:
    """The script that makes a shell ask. It is sourced, or put where the shell looks for completions."""
    return (Path(__file__).parent / f"rlctl.{shell}").read_text(encoding="utf-8")


def answer(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Print what the last word can become: of `bash LINE BREAKS`, or of `zsh WORD...` and `fish WORD...`.

    Says nothing whatever goes wrong: somebody is in the middle of a line, and a plugin that fails, a folder that is
    gone or a file that is not TOML is told by the command itself when it is run.
    """
    with contextlib.suppress(Exception, SystemExit), _silence():
        shell, *given = arguments
        typed = Line.of(given[0], breaks=given[1]) if shell == "bash" else Line(tuple(given))
        values = list(dict.fromkeys(_values(app, typed.words)))
        told = [typed.reply(value) for value, _ in values] if shell == "bash" else ["\t".join(pair) for pair in values]
        _write(["words", *told] if values else ["files"])
    return 0


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Whatever plugins and libraries print is dropped; `_write` goes past it."""
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def _write(lines: list[str]) -> None:
    assert sys.__stdout__ is not None
    sys.__stdout__.write("".join(f"{line}\n" for line in lines))


def _values(app: typer.Typer, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(value, meaning) of each word that the last one can become; none where it may be a file."""
    *before, last = words[1:]
    # `--preset=gs`: the value is completed, and the shell replaces the whole word.
    option = found[0] if (found := re.match(r"--[\w-]+=", last)) else ""
    for item in _items(app, before, last):
        if item.type == "plain" and not re.search(r"[\t\n\r\ud800-\udfff]", item.value):
            yield f"{option}{item.value}", " ".join((item.help or "").split())


def _items(app: typer.Typer, before: list[str], last: str) -> list[Any]:
    return list(BashComplete(get_command(app), {}, "rlctl", "").get_completions(before, last))


@dataclass(frozen=True, slots=True)
class Line:
    """The words of a line up to the cursor, without quotes and backslashes; the last as far as it is typed.

    `before` characters of the last word stand before what bash replaces, within `quote` where one is open.
    """

    words: tuple[str, ...]
    before: int = 0
    quote: str = ""

    @classmethod
    def of(cls, line: str, *, breaks: str) -> Line:
        """Read as bash does: it begins a word anew after each of `breaks` ($COMP_WORDBREAKS) and at a quote."""
        words, word, before, quote, begun = [], "", 0, "", False
        characters = iter(line)
        for character in characters:
            if quote == "'" or (quote and character not in '"\\'):
                quote, word = ("", word) if character == quote else (quote, word + character)
            elif character == "\\":
                word, begun = word + next(characters, ""), True
            elif character in "'\"":
                quote, begun, before = ("" if quote else character), True, (before if quote else len(word))
            elif character.isspace():
                words += [word] if begun or word else []
                word, before, begun = "", 0, False
            else:
                word += character
                before = len(word) if character in breaks else before
        return cls((*words, word), before, quote)

    def reply(self, value: str) -> str:
        """What bash is to put in the place of what it takes for the last word."""
        rest = value[self.before :]
        if self.quote == "'":
            return rest.replace("'", "'\\''")
        special = r'[$`"\\]' if self.quote else r"[^\w@%+=:,./^~-]"
        return re.sub(f"({special})", r"\\\1", rest)
