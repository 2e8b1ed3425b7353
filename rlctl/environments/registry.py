"""Environments by name: a table, entry points, modules of RLCTL_PLUGINS, or a class of one's own.

`register(name, environment="pkg.mod:Class")` announces one by strings, so that it imports nothing until it is asked
for; the entry points of group `rlctl.environments` name theirs as `NAME = "pkg.mod:Class"`. The one that a run names is
made with the table `environment.options` as keyword arguments, before the run begins.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from rlctl.backends import registry as plugins
from rlctl.backends.importing import import_foreign, look_in_working_folder
from rlctl.environments.loaded import LoadedEnvironment, loaded
from rlctl.errors import BackendUnavailable, ConfigError
from rlctl.presets import did_you_mean

if TYPE_CHECKING:  # settings load pydantic, and only their values are needed here
    from rlctl.settings.environment import EnvironmentSettings

GROUP = "rlctl.environments"

Sources = Sequence[tuple[str, Mapping[str, Any]]]
"""(data.source, data.options) of every table."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where an environment's class is, and who said so."""

    reference: str
    origin: str
    install: str = ""


BUILT_IN = "built-in"
_entries: dict[str, Entry] = {
    "calculator": Entry("rlctl.environments.calculator:Calculator", BUILT_IN),
    "verifiers": Entry(
        "rlctl.environments.verifiers_turns:VerifiersEnvironment", BUILT_IN, "pip install 'rlctl[verifiers]'"
    ),
}


def register(name: str, *, environment: str, install: str = "") -> None:
    """Announce an environment as "module:Class". Raises ConfigError on a taken name or a malformed reference."""
    origin = plugins.announces_more(sys._getframe(1).f_globals.get("__name__", "?"))
    module, colon, attribute = environment.partition(":")
    if not (module and colon and attribute.isidentifier()):
        raise ConfigError(
            f"environment {name!r} is registered as {environment!r}, by {origin}.",
            hint='write it as "package.module:Class".',
        )
    taken = _entries.get(name)
    if taken is not None and (taken.reference, taken.origin) != (environment, origin):
        raise ConfigError(
            f"environment name {name!r} is taken ({taken.origin}); {origin} claims it too.",
            hint="give one of them another name.",
        )
    _entries[name] = Entry(environment, origin, install)


def names() -> list[str]:
    """Every name that can be asked for."""
    plugins.open_plugins()
    return sorted({*_entries, *_announced()})


def load(settings: EnvironmentSettings, *, sources: Sources = ()) -> LoadedEnvironment | None:
    """The environment that the settings name, made with its options; None where they name none. Raises ConfigError.

    `sources` are what the run's problems come from, for an environment that wants to know.
    """
    if settings.name is None:
        return None
    entry = _entry(settings.name)
    try:
        kind = import_foreign(entry.reference, needed_by=f"environment {settings.name!r}", install=entry.install)
    except BackendUnavailable as error:
        raise ConfigError(error.message, hint=error.hint) from error
    environment = _made(settings.name, kind, settings.options)
    _tell_sources(settings.name, environment, sources)
    return loaded(settings.name, environment, timeout_s=settings.timeout_s)


def _entry(name: str) -> Entry:
    module, colon, attribute = name.partition(":")
    if module and colon and attribute:
        look_in_working_folder()
        return Entry(name, "environment.name")
    if name in _entries:
        return _entries[name]
    failures = plugins.open_plugins()
    found = {**_announced(), **_entries}
    if name in found:
        return found[name]
    near = did_you_mean(name, sorted(found)) or f" Known: {', '.join(sorted(found))}."
    broken = " ".join(f"A plugin failed: {failure.with_cure}" for failure in failures)
    raise ConfigError(
        f"environment.name = {name!r}: there is no such environment.{near}" + (f" {broken}" if broken else ""),
        hint="a class of your own is named as package.module:Class; docs/environments.md builds one up.",
    )


def _announced() -> dict[str, Entry]:
    return {
        point.name: Entry(point.value, f"entry point of {point.dist.name}" if point.dist else "entry point")
        for point in entry_points(group=GROUP)
    }


def _made(name: str, kind: Any, options: Mapping[str, Any]) -> Any:
    if not callable(kind):
        raise ConfigError(f"environment {name!r} is a {type(kind).__name__}, not a class.")
    try:
        return kind(**options)
    except ConfigError:
        raise
    # Code of the user's runs here, and may raise anything.
    except (Exception, SystemExit) as error:
        given = ", ".join(options) or "no arguments"
        raise ConfigError(
            f"environment {name!r} cannot be made with {given}: {type(error).__name__}: {error}.",
            hint="its keyword arguments are the table [environment.options].",
        ) from error


def _tell_sources(name: str, environment: Any, sources: Sources) -> None:
    serves = getattr(environment, "serves", None)
    if not callable(serves):
        return
    try:
        serves(sources)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # as above
        raise ConfigError(f"environment {name!r}: serves raised {type(error).__name__}: {error}.") from error
