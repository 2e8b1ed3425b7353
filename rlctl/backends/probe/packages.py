"""Which version of which distribution a target is of, and where its files lie."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from rlctl.backends.probe.report import Package
from rlctl.backends.probe.source import find_spec


def package_of(target: str, *, distributed_as: str = "") -> Package | None:
    """The package of "module:Class"; None when there is none. `distributed_as` is its distribution, if known.

    An installed distribution can be shadowed by files elsewhere on the path; its version is then not theirs.
    """
    top = target.partition(":")[0].partition(".")[0]
    folder = _folder(top)
    if folder is None:
        return None
    name = distributed_as or next(iter(_distributions(tuple(sys.path)).get(top, [])), "")
    return Package(name or top, _version(name, top, folder), str(folder))


@functools.lru_cache(maxsize=1)
def _distributions(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Of each top-level package, by `path`: every file that is installed there is looked at, which takes a second."""
    return packages_distributions()


def _folder(top: str) -> Path | None:
    spec = find_spec(top)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin else None


def _version(name: str, top: str, folder: Path) -> str:
    try:
        found = distribution(name) if name else None
    except PackageNotFoundError:
        found = None
    if found is None:
        return "unknown"
    own = Path(str(found.locate_file(top))).resolve()
    is_here = folder.resolve() in (own, own.with_suffix(".py")) or _is_edited_in_place(found, folder)
    return found.version if is_here else "unknown"


def _is_edited_in_place(found: Distribution, folder: Path) -> bool:
    """Whether the files are those of an editable installation.

    Source: https://packaging.python.org/en/latest/specifications/direct-url/
    """
    record = json.loads(found.read_text("direct_url.json") or "{}")
    if not record.get("dir_info", {}).get("editable"):
        return False
    return folder.resolve().is_relative_to(Path(url2pathname(urlsplit(record["url"]).path)).resolve())
