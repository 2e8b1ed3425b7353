"""Find an advantage estimator or a policy loss by its name, as `backends/registry.py` finds backends.

Entries hold "module:function" strings, so that registering imports nothing. They come through three doors: the built-in
tables, an entry point named like the entry whose module registers it when imported, and the modules of RLCTL_PLUGINS.
The last two are opened when a name is looked up that is not there yet. A plugin that fails is an error for who asks.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, Protocol, TypeVar

from rlctl.backends.importing import import_foreign, look_in_working_folder
from rlctl.errors import ConfigError, RlctlError

VARIABLE = "RLCTL_PLUGINS"


class Entry(Protocol):
    """What is registered: its name, and where its code is."""

    @property
    def name(self) -> str: ...
    @property
    def function(self) -> str: ...


EntryT = TypeVar("EntryT", bound=Entry)

registering_modules: set[str] = set()
"""Modules that have registered something else than a backend: an estimator, a loss, an environment."""


class Registry(Generic[EntryT]):
    """Entries of one kind, by name. `kind` is what a person calls them, `elsewhere` what other frameworks do."""

    def __init__(self, kind: str, *, group: str, setting: str, elsewhere: Mapping[str, str]) -> None:
        self.kind, self.group, self.setting, self.elsewhere = kind, group, setting, elsewhere
        self._entries: dict[str, EntryT] = {}
        self._origins: dict[str, str] = {}

    def add(self, entry: EntryT, *, module: str) -> None:
        """Register for that module. Raises ConfigError on a taken name, or one that no setting could hold."""
        if not isinstance(entry.name, str) or not entry.name.replace("-", "_").isidentifier():
            raise ConfigError(f"{entry.name!r}, registered by {module}, is no name for {self.kind}.")
        code, colon, attribute = entry.function.partition(":")
        if not (code and colon and attribute.isidentifier()):
            raise ConfigError(
                f"{self.kind} {entry.name!r} is registered with function={entry.function!r}, by {module}.",
                hint='write it as "package.module:function".',
            )
        if entry.name in self._entries:
            raise ConfigError(
                f"{self.kind} {entry.name!r} is taken ({self._origins[entry.name]}); {module} claims it too.",
                hint="give one of them another name.",
            )
        self._entries[entry.name], self._origins[entry.name] = entry, module
        registering_modules.add(module)

    def get(self, name: str) -> EntryT:
        """The entry of that name.

        Raises ConfigError naming the nearest and the known ones, and the error of the plugin that should have it.
        """
        if name in self._entries:
            return self._entries[name]
        for point in self._points():
            if point.name == name:
                self._open(point.value.partition(":")[0], f"plugin {name!r} of {point.dist and point.dist.name}")
        failures = [] if name in self._entries else self._open_variable()
        if name in self._entries:
            return self._entries[name]
        raise self._unknown(name, failures) from (failures[0] if failures else None)

    # Any: what the string names, which only the entry's reader knows.
    def load(self, name: str) -> Any:
        """The function of that entry. Raises ConfigError, and BackendUnavailable when it cannot be imported."""
        return import_foreign(self.get(name).function, needed_by=f"{self.kind} {name!r}")

    def names(self) -> list[str]:
        """Every name that can be asked for. Imports the modules of RLCTL_PLUGINS, but no entry point."""
        self._open_variable()
        return sorted({*self._entries, *(point.name for point in self._points())})

    def registered(self) -> list[EntryT]:
        """The entries that are there without opening a plugin's entry point."""
        self._open_variable()
        return sorted(self._entries.values(), key=lambda entry: entry.name)

    def foreign(self) -> list[tuple[str, str, RlctlError | None]]:
        """(name, where it is from, why it failed) of every entry of a plugin, after importing all of them."""
        self._open_variable()
        failed = []
        for point in self._points():
            origin = f"entry point of {point.dist.name}" if point.dist else "entry point"
            try:
                self._open(point.value.partition(":")[0], f"plugin {point.name!r}")
            except RlctlError as error:
                failed.append((point.name, origin, error))
        there = [(name, f"module {module}", None) for name, module in self._origins.items() if not _is_ours(module)]
        return [*there, *failed]

    def _points(self) -> tuple[EntryPoint, ...]:
        return tuple(entry_points(group=self.group))

    def _open_variable(self) -> list[RlctlError]:
        """Import what RLCTL_PLUGINS names; returns the failures, so that one does not hide the others."""
        failures = []
        modules = [module.strip() for module in os.environ.get(VARIABLE, "").split(",")]
        if any(modules):
            look_in_working_folder()
        for module in dict.fromkeys(filter(None, modules)):
            try:
                self._open(module, f"plugin {module!r} ({VARIABLE})")
            except RlctlError as error:
                failures.append(error)
        return failures

    def _open(self, module: str, who: str) -> None:
        with self._whole():
            import_foreign(module, needed_by=who)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What a plugin announced before it failed would be half of it."""
        before, origins = dict(self._entries), dict(self._origins)
        try:
            yield
        except RlctlError:
            self._entries, self._origins = before, origins
            raise

    def _unknown(self, name: str, failures: list[RlctlError]) -> ConfigError:
        known = self.names()
        text = f"there is no {self.kind} {name!r}{self._meant(name, known)}"
        text += "".join(f" It may be in a plugin that failed: {failure.with_cure}" for failure in failures)
        return ConfigError(
            text,
            hint=f"known: {', '.join(known)}. To add one, install a package with an entry point in group "
            f"{self.group!r}, or name a module that registers it in {VARIABLE}.",
        )

    def _meant(self, name: str, known: Sequence[str]) -> str:
        ours = self.elsewhere.get(name.lower().replace("-", "_"))
        if ours is not None:
            return f"; what others call that is {ours} here."
        close = difflib.get_close_matches(name, known, n=1)
        return f"; did you mean {close[0]!r}?" if close else "."


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


def calling_module() -> str:
    """The module whose top level called the function that calls this."""
    return str(sys._getframe(2).f_globals.get("__name__", "?"))
