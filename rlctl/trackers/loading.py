"""Trackers by name, made with their settings; what one lacks is told before a run begins, for all of them at once."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.backends.importing import look_in_working_folder
from rlctl.errors import ConfigError
from rlctl.trackers.base import Tracker
from rlctl.trackers.table import TRACKERS

if TYPE_CHECKING:  # the settings load pydantic
    from rlctl.settings.tracking import TrackingSettings

METHODS = ("start", "log", "finish")


def load(settings: TrackingSettings, *, run_dir: str) -> dict[str, Tracker]:
    """The trackers that the settings name, by name. Raises ConfigError with everything that is wrong with any of them.

    `run_dir` is the folder of all runs.
    """
    found: dict[str, Tracker] = {}
    complaints, hints = [], []
    for name in settings.trackers:
        try:
            found[name] = _made(name, settings, run_dir=run_dir)
        except ConfigError as error:
            complaints.append(error.message)
            hints.append(error.hint)
    if complaints:
        raise ConfigError("\n".join(complaints), hint=" ".join(dict.fromkeys(filter(None, hints))))
    return found


def _made(name: str, settings: TrackingSettings, *, run_dir: str) -> Tracker:
    if name not in TRACKERS:
        return _custom(name, settings.options.get(name, {}))
    entry = TRACKERS[name]
    _guarded(lambda: importlib.import_module(entry.package), name=name, package=entry.package, extra=entry.extra)
    module, _, attribute = entry.reference.partition(":")
    kind = _guarded(lambda: importlib.import_module(module), name=name, package=entry.package, extra=entry.extra)
    tracker: Tracker = getattr(kind, attribute)(getattr(settings, name), run_dir=run_dir)
    return tracker


def _guarded(work: Callable[[], Any], *, name: str, package: str, extra: str) -> Any:
    """Whatever a package of somebody else raises as it is imported becomes a ConfigError."""
    cure = f"pip install 'rlctl[{extra}]', or leave {name} out of tracking.trackers."
    try:
        return work()
    except ModuleNotFoundError as error:
        missing = error.name or str(error)
        if missing.partition(".")[0] == package:
            raise ConfigError(f"tracker {name} needs {package!r}, which is not installed.", hint=cure) from error
        raise ConfigError(f"tracker {name} needs {missing!r}, which is not installed.", hint=cure) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"tracker {name} cannot be used: importing {package} raised {type(error).__name__}: {error}.", hint=cure
        ) from error


def _custom(name: str, options: dict[str, Any]) -> Tracker:
    module_name, _, attribute = name.partition(":")
    look_in_working_folder()
    importlib.invalidate_caches()
    try:
        kind = getattr(importlib.import_module(module_name), attribute)
    except AttributeError as error:
        raise ConfigError(f"tracker {name!r}: {module_name} has no {attribute!r}.") from error
    except ModuleNotFoundError as error:
        text = f"tracker {name!r}: there is no module {error.name!r}, neither installed nor in {Path.cwd()}."
        raise ConfigError(text) from error
    # Code of the user's runs here, and may raise anything.
    except (Exception, SystemExit) as error:
        raise ConfigError(f"tracker {name!r}: importing {module_name} raised {_words(error)}.") from error
    try:
        tracker: Tracker = kind(**options)
    except (Exception, SystemExit) as error:
        given = ", ".join(options) or "no arguments"
        raise ConfigError(
            f"tracker {name!r} cannot be made with {given}: {_words(error)}.",
            hint=f'its keyword arguments are the table [tracking.options."{name}"].',
        ) from error
    lacking = [method for method in METHODS if not callable(getattr(tracker, method, None))]
    if lacking:
        raise ConfigError(
            f"tracker {name!r} has no method {' and no '.join(lacking)}.", hint="docs/tracking.md has the contract."
        )
    return tracker


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
