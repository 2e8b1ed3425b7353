"""Find a backend by its name without importing it.

A backend is announced with `register(name, backend="module:Class", ...)`: strings only, so that registering
imports nothing, and a backend costs nothing to the runs that do not use it. Announcements come through three doors:

  1. the built-in table at the end of this file;
  2. an entry point in group `rlctl.backends`, named like the backend, whose module calls `register` when imported;
  3. the modules named in RLCTL_PLUGINS (comma-separated), for code that is not installed.

The last two are opened when a name is looked up, never while rlctl itself is being imported, so a plugin may
import anything of rlctl. A plugin that fails is an error for who asks for it, and a line of `rlctl plugins`.
"""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal, get_args

from rlctl import __version__
from rlctl.algorithms.registry import registering_modules
from rlctl.backends.importing import import_foreign, look_in_working_folder
from rlctl.errors import BackendNotFound, BackendUnavailable, ConfigError, RlctlError

GROUP = "rlctl.backends"
VARIABLE = "RLCTL_PLUGINS"

Part = Literal["backend", "settings", "client", "protocol", "memory"]


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """Where the parts of a backend live, each "module:Class" or "" where there is none, and how to install them."""

    name: str
    backend: str = ""
    settings: str = ""
    client: str = ""
    protocol: str = ""
    contract: str = ""
    """"package:file.toml" inside a package: what the backend calls, for `rlctl check-backend`."""
    memory: str = ""
    """What lays out the memory that a run will hold, for `rlctl plan`: a `planning.memory.MemoryPlanner`."""
    install: str = ""
    origin: str = ""
    """Who registered it, in words."""
    version: str | None = None
    """Of the distribution it came with; None when it came without one."""

    # Any: what is loaded has the type that the string names, which only its reader knows.
    def load(self, part: Part) -> Any:
        """The class that `part` names; the first moment at which anything heavy is imported.

        Raises BackendUnavailable when there is none, or when it cannot be imported, telling apart a module that is
        not installed, one that lacks a dependency, and one that fails otherwise.
        """
        reference: str = getattr(self, part)
        if not reference:
            raise BackendUnavailable(
                f"Backend {self.name!r} has no {part} class in this version of rlctl.",
                hint=f"`rlctl check-backend {self.name}` says what it has.",
            )
        return import_foreign(reference, needed_by=f"backend {self.name!r}", install=self.install)


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """One line of `rlctl plugins`: a registered backend, or a plugin that failed and why."""

    name: str
    origin: str
    version: str | None
    error: str | None = None
    traceback: str = ""


def register(
    name: str,
    *,
    backend: str = "",
    settings: str,
    client: str = "",
    protocol: str = "",
    contract: str = "",
    memory: str = "",
    install: str = "",
) -> None:
    """Announce a backend, each part as "module:Class", its contract as "package:file.toml".

    Raises ConfigError on a taken name or a malformed part.
    """
    origin = _opening[-1].origin if _opening else f"module {sys._getframe(1).f_globals.get('__name__', '?')}"
    version = _opening[-1].version if _opening else None
    spec = BackendSpec(name, backend, settings, client, protocol, contract, memory, install, origin, version)
    _check_parts(spec)
    _check_name_is_free(spec)
    _specs[name] = spec


def get(name: str) -> BackendSpec:
    """The spec called `name`.

    Raises BackendNotFound when nobody registers that name, BackendUnavailable when the plugin that should fails,
    and ConfigError when two plugins claim it.
    """
    if name not in _specs:
        for door in _entry_points():
            if door.name == name:
                _open(door)
    failures = [] if name in _specs else _open_unnamed()
    if name in _specs:
        return _specs[name]
    raise _not_found(name, failures) from (failures[0] if failures else None)


def names() -> list[str]:
    """Every name that can be asked for. Imports the modules of RLCTL_PLUGINS, but no entry point."""
    _open_unnamed()
    return sorted({*_specs, *(door.name for door in _entry_points())})


def plugins() -> list[PluginRecord]:
    """Every backend and every plugin that failed, after importing all plugins; raises nothing for those that fail."""
    failed = [_failure_record(door, error) for door in _all_doors() if (error := _failure(door)) is not None]
    registered = [PluginRecord(spec.name, spec.origin, spec.version) for spec in _specs.values()]
    return sorted([*registered, *failed], key=lambda record: (record.origin != BUILT_IN, record.name, record.origin))


@dataclass(frozen=True, slots=True)
class _Door:
    """A plugin's module and how it was found. `name` is its entry point's, "" for one of RLCTL_PLUGINS."""

    module: str
    name: str
    origin: str
    version: str | None


BUILT_IN = "built-in"
_specs: dict[str, BackendSpec] = {}
_opening: list[_Door] = [_Door("rlctl", "", BUILT_IN, __version__)]
"""The plugins being imported right now, outermost first; while this module is imported, the built-in table."""
_outcomes: dict[_Door, RlctlError | None] = {}
"""What came of each plugin that was imported: None when it registered its backends."""


def open_plugins() -> list[RlctlError]:
    """Import the modules of RLCTL_PLUGINS, once, for other registries than this one; returns the failures."""
    return _open_unnamed()


def announces_more(module: str) -> str:
    """Note that a module announces something beside backends, so that it need announce none; who it is, in words."""
    door = _opening[-1] if _opening else None
    registering_modules.update({module} if door is None else {module, door.module})
    return f"module {module}" if door is None else door.origin


def _open(door: _Door) -> None:
    """Import a plugin, once. Raises the same error each time it is asked for one that failed."""
    if door not in _outcomes:
        _outcomes[door] = None  # a plugin that asks for names while it is imported must not be imported again
        _outcomes[door] = _opened(door)
    if (error := _outcomes[door]) is not None:
        raise error


def _opened(door: _Door) -> RlctlError | None:
    before = dict(_specs)
    _opening.append(door)
    try:
        _check_single_claim(door)
        module = import_foreign(door.module, needed_by=f"plugin {door.name or door.module!r} ({door.origin})")
        _check_registered(door, str(module.__file__), new=_specs.keys() - before.keys())
    except RlctlError as error:
        # What a plugin announced before it failed would be half of it.
        _specs.clear()
        _specs.update(before)
        return error
    finally:
        _opening.pop()
    return None


def _failure(door: _Door) -> RlctlError | None:
    try:
        _open(door)
    except RlctlError as error:
        return error
    return None


def _open_unnamed() -> list[RlctlError]:
    """Import the modules of RLCTL_PLUGINS; returns the failures, so that one does not hide the others."""
    return [error for door in _variable_doors() if (error := _failure(door)) is not None]


def _all_doors() -> list[_Door]:
    return [*_entry_points(), *_variable_doors()]


@cache
def _entry_points() -> tuple[_Door, ...]:
    found = {
        _Door(
            point.value.partition(":")[0].strip(), point.name, f"entry point of {point.dist.name}", point.dist.version
        )
        for point in entry_points(group=GROUP)
        if point.dist is not None
    }
    return tuple(sorted(found, key=lambda door: (door.name, door.origin)))


def _variable_doors() -> list[_Door]:
    modules = [module.strip() for module in os.environ.get(VARIABLE, "").split(",")]
    if any(modules):
        look_in_working_folder()
    return [_Door(module, "", f"{VARIABLE} module {module}", None) for module in dict.fromkeys(modules) if module]


def _check_parts(spec: BackendSpec) -> None:
    if not isinstance(spec.name, str) or not spec.name.replace("-", "_").isidentifier():
        raise ConfigError(f"{spec.name!r}, registered by {spec.origin}, is no name for a backend.")
    for part in get_args(Part):
        reference = getattr(spec, part)
        module, colon, attribute = reference.partition(":")
        if reference and not (module and colon and attribute.isidentifier()):
            raise ConfigError(
                f"Backend {spec.name!r} is registered with {part}={reference!r}, by {spec.origin}.",
                hint='write it as "package.module:Class".',
            )
    package, colon, file = spec.contract.partition(":")
    if spec.contract and not (package and colon and file.endswith(".toml") and "/" not in file):
        raise ConfigError(
            f"Backend {spec.name!r} is registered with contract={spec.contract!r}, by {spec.origin}.",
            hint='write it as "package:file.toml", of a file inside the package.',
        )


def _check_name_is_free(spec: BackendSpec) -> None:
    if spec.name in _specs:
        raise ConfigError(
            f"Backend name {spec.name!r} is taken ({_specs[spec.name].origin}); {spec.origin} claims it too.",
            hint="give one of them another name, or uninstall it.",
        )
    # The plugin whose entry point has this name keeps it against another's module, whichever is imported first.
    if _opening and _opening[-1].origin != BUILT_IN:
        _check_single_claim(_Door(_opening[-1].module, spec.name, spec.origin, None))


def _check_single_claim(door: _Door) -> None:
    rivals = [other for other in _entry_points() if other.name == door.name and other.module != door.module]
    if door.name and rivals:
        who = ", ".join([door.origin, *(other.origin for other in rivals)])
        raise ConfigError(
            f"Backend name {door.name!r} is claimed by more than one plugin: {who}.",
            hint="uninstall one of them, or give it another name.",
        )


def _check_registered(door: _Door, file: str, *, new: set[str]) -> None:
    """The module may have been imported before, by its user or through the other door; then its names are there."""
    if door.name in _specs or (
        not door.name and (new or _names_from(door.module) or door.module in registering_modules)
    ):
        return
    what = f"backend {door.name!r}" if door.name else "any backend"
    raise BackendUnavailable(
        f"Plugin module {door.module} ({door.origin}) was imported but does not register {what}"
        + (f"; it registers {', '.join(sorted(new))}." if new else "."),
        hint=f"call rlctl.backends.registry.register at the top level of {file}.",
    )


def _names_from(module: str) -> list[str]:
    modules = {other.origin for other in _all_doors() if other.module == module} | {f"module {module}"}
    return [spec.name for spec in _specs.values() if spec.origin in modules]


def _not_found(name: str, failures: list[RlctlError]) -> BackendNotFound:
    known = names()
    close = difflib.get_close_matches(name, known, n=1)
    text = f"No backend is called {name!r}." + (f" Did you mean {close[0]!r}?" if close else "")
    text += "".join(f"\nIt may be in a plugin that failed: {failure.with_cure}" for failure in failures)
    return BackendNotFound(
        text,
        hint=f"known: {', '.join(known)}. To add one, install a package with an entry point in group {GROUP!r}, "
        f"or name a module that registers it in {VARIABLE}.",
    )


def _failure_record(door: _Door, error: RlctlError) -> PluginRecord:
    text = "".join(traceback.format_exception(error.__cause__ or error))
    return PluginRecord(door.name or door.module, door.origin, door.version, error.message, text)


register(
    "local",
    backend="rlctl.backends.local.backend:LocalBackend",
    settings="rlctl.backends.local.settings:LocalSettings",
    memory="rlctl.backends.local.memory:LocalMemory",
    install="pip install rlctl",
)
register(
    "ray",
    backend="rlctl.backends.ray.backend:RayBackend",
    settings="rlctl.backends.ray.settings:RaySettings",
    memory="rlctl.backends.ray.memory:RayMemory",
    install="pip install 'rlctl[ray]'",
)
register(
    "http",
    backend="rlctl.backends.http.backend:HttpBackend",
    settings="rlctl.backends.http.settings:HttpSettings",
    install="pip install 'rlctl[http]'",
)
_opening.clear()
