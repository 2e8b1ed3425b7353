"""What `--help` promises of each command. A new command is found here by itself, and told what it lacks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlctl.commands.helptext import help_text, split
from tests.command_line import fresh, rlctl
from tests.commands_walk import COMMANDS, GROUPS, PROGRAM, examples, words

RUN_AS_WRITTEN = {
    "check-backend", "completion", "config schema", "config show", "data lint", "data stats", "plugins", "presets show",
    "reward check", "reward describe",
}  # fmt: skip
"""Commands whose example takes seconds, needs no earlier run and ends with 0. Of the others the words are parsed, and
those that have --dry-run go that far."""

READ = re.compile(r"\breads?\b", re.IGNORECASE)
WRITE = re.compile(r"\bwrites?\b", re.IGNORECASE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_a_command_does_reads_and_writes_and_shows_an_example(name: str) -> None:
    command = COMMANDS[name]
    text = command.help or ""
    lacks = [
        f"a first line of at most 120 characters that ends with a full stop (found {text.partition(chr(10))[0]!r})"
        if not re.fullmatch(r".{10,119}\.", text.split("\n\n")[0].replace("\n", " "))
        else "",
        "a sentence on what it reads, with the word `reads`" if not READ.search(text) else "",
        'a sentence on what it writes, with the word `writes` ("Writes nothing." is one)'
        if not WRITE.search(text)
        else "",
        'a last line "Example: rlctl ..." that works as written' if len(examples(command)) != 1 else "",
    ]
    assert not any(lacks), f"the docstring of `rlctl {name}` lacks: " + "; ".join(filter(None, lacks))


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_is_of_its_command_and_is_no_wider_than_the_documentation(name: str) -> None:
    for example in examples(COMMANDS[name]):
        assert " ".join(words(example)[: len(name.split())]) == name, f"`{example}` is not about `rlctl {name}`"
        assert len(example) <= 96, f"`{example}` does not fit the 100 columns of the documentation"


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_works_as_written(name: str, tmp_path: Path) -> None:
    for example in examples(COMMANDS[name]):
        arguments = words(example)
        if name not in RUN_AS_WRITTEN:
            dry = any("--dry-run" in parameter.opts for parameter in COMMANDS[name].params)
            arguments += ["--dry-run" if dry and "RUN" not in metavars(name) else "--help"]
        result = fresh(*arguments, cwd=tmp_path, COLUMNS="80")
        assert result.returncode == 0, f"`{example}` ended with {result.returncode}:\n{result.stderr}"
        assert result.stdout


def metavars(name: str) -> list[str | None]:
    return [parameter.metavar for parameter in COMMANDS[name].params]


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_shows_the_examples_of_its_commands(name: str) -> None:
    below = [line for other, command in COMMANDS.items() if other.startswith(f"{name} ") for line in examples(command)]
    assert below
    assert set(below) <= set(examples(GROUPS[name]))


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("name", ["", *COMMANDS, *GROUPS])
def test_help_keeps_within_the_terminal_but_for_the_examples(name: str, columns: int) -> None:
    found = PROGRAM if not name else {**COMMANDS, **GROUPS}[name]
    wanted = min(columns, 80)
    text = help_text(found, name, width=columns)
    wide = [line for line in text.splitlines() if len(line) > wanted and line.strip() not in examples(found)]
    assert not wide


def test_help_without_a_terminal_is_plain_text_and_follows_columns() -> None:
    for columns, most in (("40", 40), ("80", 80)):
        result = rlctl("train", "--help", COLUMNS=columns, FORCE_COLOR="1")
        assert "\x1b" not in result.stdout
        assert max(len(line) for line in result.stdout.splitlines() if "rlctl train" not in line) <= most


def test_the_text_that_the_documentation_shows_is_the_one_that_is_printed() -> None:
    for name in ("", "train", "config show", "presets"):
        found = {"": PROGRAM, **COMMANDS, **GROUPS}[name]
        assert rlctl(*name.split(), "--help", COLUMNS="80").stdout.rstrip() == help_text(found, name, width=80).rstrip()


@pytest.mark.parametrize(
    ("docstring", "text", "example"),
    [
        ("Do it.\n\n    Example: rlctl it --now\n    ", "Do it.", "rlctl it --now"),
        ("Do it.\n\n    Example:\n\n        rlctl it\n    ", "Do it.", "rlctl it"),
        ("Do it.\n\n    Example: `rlctl it`\n", "Do it.", "rlctl it"),
        ("Do it.\n\n    Needs more. Example: rlctl it\n", "Do it.\n\nNeeds more.", "rlctl it"),
        ("Do it.", "Do it.", None),
        ("Do it as rlctl does.", "Do it as rlctl does.", None),
        ("", "", None),
    ],
)
def test_a_docstring_is_cut_before_its_example(docstring: str, text: str, example: str | None) -> None:
    assert split(docstring) == (text, example)
