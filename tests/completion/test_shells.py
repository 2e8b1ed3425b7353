"""Completion in real shells on a pseudo-terminal: a key is pressed, and the shell's own words are compared."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.completion.shells import Shell, put_rlctl_on_path, shell

RUNS = ("exp: one", "exp: two", "my run", "it's $HOME `date`", "plain")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of awkward names, a preset file, and rlctl on the path; nothing in it can be written."""
    folder = tmp_path_factory.mktemp("place")
    for name in RUNS:
        (folder / "runs" / name).mkdir(parents=True)
        (folder / "runs" / name / "config.resolved.json").write_text("{}")
    (folder / "runs" / "no-run").mkdir()
    (folder / "settings.toml").write_text("")
    put_rlctl_on_path(folder / "bin")
    folder.chmod(0o555)
    return folder


@pytest.fixture(scope="module", params=["bash", "zsh", "fish"])
def typing(request: pytest.FixtureRequest, place: Path) -> Iterator[Shell]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    with shell(request.param, folder=place, binaries=place / "bin") as started:
        yield started


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rlctl smo", ["smoke"]),
        ("rlctl train --preset=bird", ["train", "--preset=bird-grpo"]),
        ("rlctl train --set trainer.lr_schedule=cos", ["train", "--set", "trainer.lr_schedule=cosine"]),
        ("rlctl train --config sett", ["train", "--config", "settings.toml"]),
        ("rlctl resume exp:\\ o", ["resume", "exp: one"]),
        ("rlctl resume 'exp: t", ["resume", "exp: two"]),
        ("rlctl resume it", ["resume", "it's $HOME `date`"]),
    ],
)
def test_a_word_becomes_what_it_can_only_be(typing: Shell, line: str, words: list[str]) -> None:
    assert typing.become(line) == ["rlctl", *words]


def test_a_setting_is_found_table_by_table(typing: Shell) -> None:
    # A table and a setting end without a space, so that typing goes on.
    assert typing.become("rlctl train --set algor", keys="\tkl_coe\t0.1") == [
        "rlctl", "train", "--set", "algorithm.kl_coef=0.1",
    ]  # fmt: skip


def test_what_is_ambiguous_is_listed(typing: Shell) -> None:
    shown = typing.listed("rlctl config ")
    assert "show" in shown
    assert "schema" in shown
    assert "no-run" not in typing.listed("rlctl resume ")


def test_outside_any_project_nothing_is_said(typing: Shell) -> None:
    typing.run("cd /")
    shown = typing.listed("rlctl resume nosuch")
    typing.run("cd -" if typing.name == "fish" else "cd - > /dev/null")
    for complaint in ("Error", "error", "Traceback", "No such"):
        assert complaint not in shown
