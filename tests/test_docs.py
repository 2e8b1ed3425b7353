"""The documentation: a site that builds without a warning or a network, and outputs that commands print."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import docs
from tests.commands_walk import COMMANDS, examples
from tests.test_cli import CLEAN, ROOT

PARTS = ("docs", "scripts", "examples", "benchmarks", "mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def build(repository: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=repository, capture_output=True, text=True, timeout=120,
        env={**CLEAN, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    result = build(ROOT, folder)
    assert result.returncode == 0, result.stderr
    return folder


def text_of(page: Path) -> str:
    """A page as it is read: its words without markup."""
    import html

    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))).split())


def test_every_page_of_the_repository_is_in_the_site_and_in_its_menu(site: Path) -> None:
    menu = (site / "index.html").read_text(encoding="utf-8")
    for page in [*(ROOT / "docs").glob("*.md"), Path("commands.md"), Path("settings.md"), Path("presets.md")]:
        assert (site / f"{page.stem}.html").is_file()
        assert f'href="{page.stem}.html"' in menu


def test_the_site_fetches_nothing(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|iframe|source)[^>]+src=\"?(?:https?:)?//", text)
        assert not re.findall(r"<link[^>]+(?:stylesheet|preconnect|preload|icon)[^>]+href=\"?(?:https?:)?//", text)
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8"))


def test_commands_settings_and_presets_are_those_of_the_program(site: Path) -> None:
    commands, settings, presets = (text_of(site / f"{name}.html") for name in ("commands", "settings", "presets"))
    for name, command in COMMANDS.items():
        assert f"Usage: rlctl {name}" in commands
        assert all(example in commands for example in examples(command))
    for name in names_of_settings():
        assert f" {name} " in settings, name
    assert "Peak learning rate." in settings
    assert "lr number" in settings
    assert "lr_schedule " in settings
    for preset in (ROOT / "presets").glob("*.toml"):
        assert preset.stem in presets


def names_of_settings() -> list[str]:
    """In a fresh process, as the site is built: other tests register backends of their own in this one."""
    code = "from rlctl import settings_tree; print(*(keys[-1] for keys in settings_tree.leaves()))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=CLEAN, cwd=ROOT
    ).stdout.split()


def test_links_out_of_docs_lead_to_pages_of_the_site(site: Path) -> None:
    assert 'href="source/examples/plugin/index.html"' in (site / "plugins.html").read_text(encoding="utf-8")
    assert "class ToyFarmBackend" in text_of(site / "source/examples/plugin/rlctl_toyfarm/backend.py.html")


@pytest.mark.parametrize(
    ("page", "more", "complaint"),
    [
        ("data.md", "[x](nowhere.md)", "nowhere.md"),
        ("data.md", "[x](rewards.md#nowhere)", "nowhere"),
        ("data.md", "[x](../no/such/file.py)", "no/such/file.py"),
        ("below/new.md", "# A page that the menu lacks", "below/new.md"),
    ],
)
def test_a_broken_link_anchor_or_menu_fails_the_build(page: str, more: str, complaint: str, tmp_path: Path) -> None:
    copy = copied(tmp_path)
    (copy / "docs" / page).parent.mkdir(exist_ok=True)
    with (copy / "docs" / page).open("a") as file:
        file.write(f"\n{more}\n")
    result = build(copy, tmp_path / "site")
    assert result.returncode == 1
    assert complaint in result.stderr


def test_a_menu_entry_without_a_page_fails_the_build(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    (copy / "docs" / "metrics.md").unlink()
    result = build(copy, tmp_path / "site")
    assert result.returncode == 1
    assert "metrics.md" in result.stderr


def copied(folder: Path) -> Path:
    for part in PARTS:
        source, target = ROOT / part, folder / "copy" / part
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "out"))
        else:
            shutil.copy(source, target)
    return folder / "copy"


@pytest.mark.slow
def test_outputs_in_the_documentation_are_what_their_commands_print() -> None:
    result = subprocess.run(
        [sys.executable, "scripts/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_session_has_the_output_of_its_commands() -> None:
    # Slow ones are not run here, but must have been run once, and say on what.
    for page in docs._pages():
        for block in docs.FENCE.finditer(page.read_text(encoding="utf-8")):
            if block["language"] == "console":
                typed = [f"$ {command}" for command in docs.commands_of(block["text"])]
                assert block["text"].rstrip() != "\n".join(typed), (
                    f"{page.name}: run `python scripts/docs.py --slow {page.name}`"
                )
                assert ("slow" in block["told"].split()) == bool(block["made"]), f"{page.name}: {block['text'][:80]}"


SESSION = """# Title

<!-- file: sub/mine.txt -->

```text
one
two
```

```console
$ cat sub/mine.txt | wc -l
7
$ printf 'a\\nb\\nc\\nd\\n'
```

<!-- console: exit 3 keep 1 1 -->

```console
$ seq 5; exit 3
```

<!-- console: slow -->

```console
$ exit 9
never run
```
"""


def test_a_session_is_run_and_written() -> None:
    fresh = docs.refreshed(SESSION, slow=False)
    assert "$ cat sub/mine.txt | wc -l\n2\n$ printf 'a\\nb\\nc\\nd\\n'\na\nb\nc\nd\n```" in fresh
    assert "$ seq 5; exit 3\n1\n...\n5\n```" in fresh
    assert "$ exit 9\nnever run\n```" in fresh
    assert docs.refreshed(fresh, slow=False) == fresh


def test_a_command_that_fails_ends_the_page_with_its_output() -> None:
    with pytest.raises(docs.Failed, match=r"`echo why; exit 2` ended with 2, not 0:\nwhy"):
        docs.refreshed("```console\n$ echo why; exit 2\n```\n", slow=False)


def test_an_output_that_holds_a_fence_is_refused() -> None:
    with pytest.raises(docs.Failed, match="would end the block"):
        docs.refreshed("```console\n$ printf '```\\n'\n```\n", slow=False)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("took 1.5 s, 3 GiB", "took 20.25 s, 4.5 GiB", True),
        ("p50 0.0133 ms", "p50 1e-05 ms", True),
        ("name  1.2.3  ok", "name   4.5.6+cpu   ok", True),
        ("in /usr/lib/x.py", "in /opt/y/z.py", True),
        ("run gsm-20260101-120000", "run gsm-20270202-235959", True),
        ("score 0.523", "score 0.524", False),
        ("signal 97 %", "signal 96 %", False),
        ("64 of 64 get 1", "63 of 64 get 1", False),
        ("1,999 distinct", "2,000 distinct", False),
    ],
)
def test_only_what_differs_between_machines_is_compared_by_shape(one: str, other: str, same: bool) -> None:
    first, second = (docs.masked(f"```console\n$ x\n{line}\n```\n") for line in (one, other))
    assert (first == second) is same


def test_text_outside_sessions_is_compared_as_it_is() -> None:
    assert docs.masked("took 1 s") != docs.masked("took 2 s")


def test_check_names_the_page_and_what_differs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo new\nold\n```\n")
    result = subprocess.run(
        [sys.executable, "scripts/docs.py", "--check", str(page)], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "-old" in result.stdout
    assert "+new" in result.stdout
    assert page.read_text() == "```console\n$ echo new\nold\n```\n"
