"""A reward of the user's own: `package.module:function` -> the callable, or a ConfigError that says what is missing."""

from __future__ import annotations

import difflib
import importlib
import inspect
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlctl.backends.importing import look_in_working_folder
from rlctl.errors import ConfigError

AnyCallable = Callable[..., Any]


def import_function(name: str) -> AnyCallable:
    """The callable that `package.module:function` names. Raises ConfigError when there is none of that shape."""
    module_name, _, path = name.partition(":")
    function = _attribute(name, _import(name, module_name), path)
    _check_signature(name, function)
    return function


def is_custom(name: str) -> bool:
    """Whether the name has the form `module:function`."""
    module_name, colon, path = name.partition(":")
    return bool(colon and module_name and path)


def _import(name: str, module_name: str) -> object:
    """The module, found where Python finds it or, last so that it shadows nothing, in the current folder."""
    look_in_working_folder()
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            message = f"reward {name!r}: there is no module {error.name!r}, neither installed nor in {Path.cwd()}."
            raise ConfigError(message) from error
        raise ConfigError(f"reward {name!r}: {module_name} needs {error.name!r}, which is not installed.") from error
    # Code of the user's runs here, and may raise anything; a script without a main guard may call sys.exit.
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"reward {name!r}: importing {module_name} raised {type(error).__name__}: {error}."
        ) from error


def _attribute(name: str, module: object, path: str) -> AnyCallable:
    try:
        found = operator.attrgetter(path)(module)
    except AttributeError as error:
        nearest = difflib.get_close_matches(path, vars(module), n=1)
        message = f"reward {name!r}: {getattr(module, '__file__', None) or module} has no {path!r}"
        raise ConfigError(f"{message}; the nearest is {nearest[0]!r}." if nearest else f"{message}.") from error
    if inspect.isclass(found) or not callable(found):
        kind = "class" if inspect.isclass(found) else type(found).__name__
        raise ConfigError(f"reward {name!r} is a {kind}, not a function.")
    return found  # type: ignore[no-any-return]  # what it returns is checked at each call


def _check_signature(name: str, function: AnyCallable) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # Some functions written in C have none to look at.
    try:
        signature.bind(None, "")
    except TypeError as error:
        raise ConfigError(
            f"reward {name!r} takes {signature}, but is called with (problem, completion): {error}."
        ) from error
