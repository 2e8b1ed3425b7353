"""What mkdocs is told of the pages that do not stand in docs/: made ones, and files of the repository that are linked.

The README is the first page as it is; links keep the form that works where the file stands, and are turned here.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from docs_pages import command_page, preset_page, settings_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
MADE = {"commands.md": command_page, "settings.md": settings_page, "presets.md": preset_page}
TAKEN = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Page -> file of the repository."""

EVERY_OTHER = "*"
"""In mkdocs.yml's nav: all pages of docs/ that it does not name, by title."""

LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that are not named in place of EVERY_OTHER."""
    assert config.nav is not None
    named = set(_named(config.nav))
    others = sorted({path.name for path in Path(config.docs_dir).glob("*.md")} - named, key=_title)
    config.nav = [
        {title: others if entry == EVERY_OTHER else entry for title, entry in section.items()} for section in config.nav
    ]
    return config


def _named(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        yield from (name for entry in nav.values() for name in _named(entry))
    elif isinstance(nav, list):
        yield from (name for entry in nav for name in _named(entry))


def _title(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8").partition("\n")[0].casefold()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, those taken from the repository, and every file of it that a page links."""
    for name, make in MADE.items():
        files.append(File.generated(config, name, content=make()))
    for name, source in TAKEN.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    waiting = [*TAKEN.values(), *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
    seen = set(waiting)
    while waiting:
        for linked in _linked(waiting.pop()):
            if linked not in seen and not linked.startswith("docs/"):
                seen.add(linked)
                waiting.append(linked)
                files.append(File.generated(config, _page_of(linked), content=_shown(linked)))
    return files


def _linked(source: str) -> Iterator[str]:
    """The files of the repository that one of its Markdown files links; a folder's README for the folder."""
    if source.endswith(".md"):
        for _, target, _ in LINK.findall((ROOT / source).read_text(encoding="utf-8")):
            found = _target(source, target)
            if found is not None:
                yield found


def _target(source: str, link: str) -> str | None:
    path = os.path.normpath(PurePosixPath(source).parent / link)
    if (ROOT / path).is_dir():
        path = f"{path}/README.md"
    return path if (ROOT / path).is_file() else None


def _page_of(path: str) -> str:
    """Where a file of the repository stands in the site."""
    for page, source in TAKEN.items():
        if path == source:
            return page
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def _shown(path: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n````{PurePosixPath(path).suffix.removeprefix('.')}\n{text.rstrip()}\n````\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links to their pages."""
    source = next((path for path in _sources(page.file.src_uri) if (ROOT / path).is_file()), None)
    if source is None:
        return markdown
    here = PurePosixPath(page.file.src_uri).parent

    def turned(link: re.Match[str]) -> str:
        found = _target(source, link[2])
        if found is None:
            return link[0]
        return f"{link[1]}{os.path.relpath(_page_of(found), here)}{link[3]}"

    return LINK.sub(turned, markdown)


def _sources(page: str) -> Iterator[str]:
    if page not in MADE:
        yield TAKEN.get(page, f"docs/{page}")
        yield page.removeprefix("source/")
