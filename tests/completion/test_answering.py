"""What `rlctl __complete` answers: for whom, how lightly, and with how little noise."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest

from rlctl import runfiles
from rlctl.completion import names
from rlctl.completion.answering import Line
from tests.command_line import CLEAN, ROOT, rlctl
from tests.commands_walk import COMMANDS, GROUPS

BREAKS = " \t\n\"'><=;|&(:"
"""Bash's own $COMP_WORDBREAKS, but for the @ that some leave out."""

FREE = {
    "attach", "client", "config", "data", "device", "file", "folder", "host", "metrics", "name", "out", "output",
    "peer_version", "plot", "problem", "report", "run_dir",
}  # fmt: skip
"""Parameters of type text whose value is the user's own: a new name, a class, a file (the shell completes those)."""


def answered(*words: str, cwd: Path | None = None, **environ: str) -> list[str]:
    result = rlctl("__complete", "zsh", "rlctl", *words, cwd=cwd, **environ)
    assert result.returncode == 0
    assert result.stderr == ""
    return [line.partition("\t")[0] for line in result.stdout.splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_text_parameter_completes_or_is_known_to_be_free(name: str) -> None:
    for parameter, annotation in get_type_hints(inspect.unwrap(COMMANDS[name].callback), include_extras=True).items():
        kind, *about = get_args(annotation) if get_origin(annotation) is Annotated else [annotation]
        is_text = str in (kind, *get_args(kind))
        known = parameter in FREE or any(one.autocompletion is not None for one in about)
        assert known or not is_text, (
            f"`rlctl {name}`: the parameter {parameter} completes nothing. Give it autocompletion= from "
            "rlctl/completion/names.py (runs, presets, backends...), or name it in FREE here"
        )


def test_environments_are_known_by_name() -> None:
    assert answered("train", "--set", "environment.name=cal") == ["words", "environment.name=calculator"]
    assert "environment.name=null" in answered("train", "--set", "environment.name=")


def test_variants_are_those_of_the_preset_in_the_line() -> None:
    assert answered("train", "--preset", "bird-grpo", "--variant", "") == ["words", "gpu", "embedded", "cpu"]
    assert answered("train", "--preset", "nosuch", "--variant", "") == []


def test_runs_are_those_of_run_dir(tmp_path: Path) -> None:
    for where, name in (("runs", "here"), ("elsewhere", "there"), ("third", "tab\tname"), ("third", "other")):
        (tmp_path / where / name).mkdir(parents=True)
        (tmp_path / where / name / "config.resolved.json").touch()
    (tmp_path / "third" / os.fsdecode(b"not utf-8 \xff")).mkdir()
    (tmp_path / "third" / os.fsdecode(b"not utf-8 \xff") / "config.resolved.json").touch()
    (tmp_path / "mine.toml").write_text("run.dir = 'third'")
    assert answered("resume", "", cwd=tmp_path) == ["words", "here", "latest"]
    assert answered("resume", "", cwd=tmp_path, RLCTL_RUN__DIR="elsewhere") == ["words", "there", "latest"]
    assert answered("resume", "--config", "mine.toml", "", cwd=tmp_path) == ["words", "other", "latest"]
    assert answered("resume", "--set", "run.dir=elsewhere", "", cwd=tmp_path) == ["words", "there", "latest"]
    assert answered("eval", "runs/h", cwd=tmp_path) == ["words", "runs/here"]


def test_a_run_is_known_by_the_file_that_runs_write() -> None:
    assert f'"*/{runfiles.CONFIG}"' in inspect.getsource(names._run_folders)


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (["resume", ""], {"RLCTL_RUN__DIR": "/no/such/folder"}),
        (["resume", "--config", "/no/such/file", ""], {}),
        (["train", "--backend", "loc"], {"RLCTL_PLUGINS": "nosuchmodule,tests.completion.noisy_plugin"}),
        (["train", "--no-such-option", ""], {}),
        (["--no-such-option", ""], {}),
    ],
)
def test_whatever_is_wrong_is_said_by_the_command_and_not_by_the_key(words: list[str], environ: dict[str, str]) -> None:
    for line in answered(*words, **environ):
        assert line in ("words", "files", "local", *(one.split()[0] for one in (*COMMANDS, *GROUPS)))


def test_a_key_loads_nothing_heavy_and_no_settings_class() -> None:
    code = """
import sys
sys.argv = ["rlctl", "__complete", "zsh", "rlctl", "train", "--set", "remote_backend.ray."]
from rlctl.cli import main
try:
    main()
except SystemExit as end:
    assert end.code == 0
heavy = {"torch", "transformers", "ray", "numpy", "datasets", "rlctl.settings", "rlctl.config", "rich"}
print("LOADED", sorted(heavy & set(sys.modules)))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=CLEAN
    )
    assert "remote_backend.ray.zero_stage=" in result.stdout
    assert result.stdout.endswith("LOADED []\n")


@pytest.mark.parametrize(
    ("line", "words", "before", "quote"),
    [
        ("rlctl ", ("rlctl", ""), 0, ""),
        ("rlctl  tr", ("rlctl", "tr"), 0, ""),
        ("rlctl resume my\\ ru", ("rlctl", "resume", "my ru"), 0, ""),
        ("rlctl resume 'my ru", ("rlctl", "resume", "my ru"), 0, "'"),
        ('rlctl resume "a \\" b', ("rlctl", "resume", 'a " b'), 0, '"'),
        ("rlctl --set a=b:c", ("rlctl", "--set", "a=b:c"), 4, ""),
        ("rlctl --set a='b c", ("rlctl", "--set", "a=b c"), 2, "'"),
        ("rlctl '' x", ("rlctl", "", "x"), 0, ""),
        ("rlctl a\\", ("rlctl", "a"), 0, ""),
    ],
)
def test_a_line_of_bash_is_cut_where_bash_cuts_it(line: str, words: tuple[str, ...], before: int, quote: str) -> None:
    assert Line.of(line, breaks=BREAKS) == Line(words, before, quote)


@pytest.mark.parametrize("value", ["plain", "two words", "it's", "$HOME", "`date`", "a;b", "exp: 1", 'say "hi"!', "ü*"])
def test_what_bash_is_given_stands_for_the_value_itself(value: str) -> None:
    for line, after in (("rlctl resume ", ""), ('rlctl resume "', '"'), ("rlctl resume '", "'")):
        whole = line.replace("rlctl resume ", "printf %s ") + Line.of(line, breaks=BREAKS).reply(value) + after
        assert subprocess.run(["bash", "-c", whole], capture_output=True, text=True).stdout == value


def test_the_completion_command_prints_a_script_and_writes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for shell in ("bash", "zsh", "fish"):
        assert "__complete" in rlctl("completion", shell, HOME=str(home)).stdout
    assert list(home.iterdir()) == []
    refused = rlctl("completion", "tcsh")
    assert refused.returncode == 2
    assert "Invalid value for 'SHELL': 'tcsh' is not one of 'bash', 'zsh', 'fish'." in refused.stderr
