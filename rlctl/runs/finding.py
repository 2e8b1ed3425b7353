"""Which run a person means: a folder, a name in the folder of runs, the beginning of one, or `latest`."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rlctl.errors import ConfigError
from rlctl.presets import did_you_mean
from rlctl.runfiles import CONFIG
from rlctl.runlock import LOCK

LATEST = "latest"

SIGNS = (CONFIG, "metrics.jsonl", LOCK)
"""A folder with one of these holds a run."""

SHOWN = 8
"""Runs that an error names."""


def is_run(folder: Path) -> bool:
    """Raises PermissionError for a folder of somebody else's that may not be looked into."""
    return any((folder / sign).is_file() for sign in SIGNS)


def runs_in(parent: Path) -> list[Path]:
    """The folders of runs that can be read, the one that moved last at the end."""
    folders = [folder for folder in _folders(parent) if not _is_closed(folder) and is_run(folder)]
    return sorted(folders, key=lambda folder: (moved_at(folder), folder.name))


def closed_in(parent: Path) -> list[Path]:
    """The folders that may not be looked into, so that nobody knows whether they are runs."""
    return sorted(folder for folder in _folders(parent) if _is_closed(folder))


def _is_closed(folder: Path) -> bool:
    try:
        is_run(folder)
    except PermissionError:
        return True
    return False


def _folders(parent: Path) -> list[Path]:
    try:
        return [folder for folder in parent.iterdir() if folder.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"{parent} cannot be read: {why}.", hint="name another by --dir.") from error


def moved_at(folder: Path) -> float:
    """When a run last wrote, in seconds since 1970."""
    times = []
    for name in (*SIGNS, "samples.jsonl"):
        with contextlib.suppress(OSError):
            times.append((folder / name).stat().st_mtime)
    return max(times, default=0.0)


def find_run(text: str, *, parent: Path) -> Path:
    """The folder of the run meant by `text`. Raises ConfigError, with the runs that there are."""
    for folder in (parent / text, Path(text).expanduser()) if text.strip() and "\0" not in text else ():
        try:
            if is_run(folder):
                return folder
        except PermissionError as error:
            raise ConfigError(f"{folder} cannot be read: {error.strerror}.", hint="whose run is it?") from error
        except (OSError, ValueError):  # a name too long to be one, or not text
            continue
    there = runs_in(parent)
    if text == LATEST and there:
        return there[-1]
    near = [folder for folder in there if text and folder.name.startswith(text)]
    if len(near) == 1:
        return near[0]
    names = sorted(folder.name for folder in near or there)
    if near:
        raise ConfigError(f"{text!r} is the beginning of {len(near)} runs: {_some(names)}.", hint="type more of it.")
    known = f"runs in {parent}: {_some(names)}" if names else f"there is no run in {parent} (run.dir)"
    raise ConfigError(f"no run {text!r}.{did_you_mean(text, names)}", hint=f"{known}.")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[-SHOWN:]) + more
