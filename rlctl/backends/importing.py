"""Import somebody else's code by its name, and say in one line what is wrong when that fails."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

from rlctl.errors import BackendUnavailable, RlctlError

_ABSENT = object()
_OURS = (__name__, "rlctl.backends.registry")
"""Modules that are on the way to an error without being where it is: a plugin calls `register` as it is imported."""


def look_in_working_folder() -> None:
    """Let modules that a person names be found where that person stands; last, so that none shadows another."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


# Any: somebody else's module, class, function or object.
def import_foreign(reference: str, *, needed_by: str, install: str = "") -> Any:
    """What "module" or "module:attribute" of somebody else names.

    Whatever goes wrong becomes BackendUnavailable, with the error as its cause: a module that is not installed, one
    that imports something that is not, one that raises, one without the attribute.
    """
    module, _, attribute = reference.partition(":")
    try:
        found = importlib.import_module(module)
        # Reading an attribute is part of importing: packages that import lazily do it in their `__getattr__`.
        found_attribute = getattr(found, attribute, _ABSENT) if attribute else found
    except RlctlError:
        raise
    except ModuleNotFoundError as error:
        raise _missing(module, error, needed_by=needed_by, install=install) from error
    # The one place where anything is caught: foreign code may raise what it likes while it is imported, even
    # SystemExit, and must not take the other backends with it.
    except (Exception, SystemExit) as error:
        raise BackendUnavailable(
            f"Importing {module}, for {needed_by}, raised {type(error).__name__}: {error}",
            hint=f"raised at {_place(error)}; it has to be mended there.",
        ) from error
    if found_attribute is _ABSENT:
        raise BackendUnavailable(
            f"{module} has no {attribute!r}, which {needed_by} names.",
            hint=f"is another version of it installed? It was read from {getattr(found, '__file__', None)}.",
        )
    return found_attribute


def _missing(module: str, error: ModuleNotFoundError, *, needed_by: str, install: str) -> BackendUnavailable:
    """Tells a module that is not installed from one that is, but imports something that is not."""
    missing = error.name or str(error)
    if _is_ours(module) and not _is_ours(missing) and install:
        # A backend of rlctl's own without what its extra brings: the module in between helps nobody.
        text = f"{needed_by} needs {missing.partition('.')[0]!r}, which is not installed."
    elif module == missing:
        text = f"{needed_by} needs module {module!r}, which is not installed."
    elif module.startswith(f"{missing}."):
        text = f"{needed_by} needs module {module!r}, but {missing!r} is not installed."
    else:
        who = _importer(error)
        text = f"{needed_by} needs {module!r}; that is installed, but {who} imports {missing!r}, which is not."
        install = f"install the package that provides {missing!r}" + (f", or reinstall: {install}" if install else ".")
    install = install or f"install the package of {module!r}, or put the folder it is in on PYTHONPATH."
    return BackendUnavailable(text[0].upper() + text[1:], hint=install)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


def _importer(error: BaseException) -> str:
    frames = _foreign_frames(error)
    return frames[-1][0] if frames else "its code"


def _foreign_frames(error: BaseException) -> list[tuple[str, str, int]]:
    """Module, file and line of each place the error passed, innermost last, without the import machinery and us."""
    places = [
        (frame.f_globals.get("__name__", "?"), frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return [place for place in places if place[0] not in _OURS and place[0].partition(".")[0] != "importlib"]


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = _foreign_frames(error)
    return f"{frames[-1][1]}:{frames[-1][2]}" if frames else "compiled code"
