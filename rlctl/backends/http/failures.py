"""Errors across the wire: their kind, message and hint; a traceback stays in the server's log.

A kind is the name of a class of `errors.py`; one that the reader does not have becomes its nearest ancestor's, which
travels along.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rlctl import errors
from rlctl.errors import BackendError, OutOfMemory, RlctlError


class Failure(msgspec.Struct, frozen=True):
    """`kinds` are names of classes, the error's own first, then its ancestors'."""

    kinds: tuple[str, ...]
    message: str
    hint: str = ""

    def error(self) -> RlctlError:
        """The error, of the first kind that is known here."""
        known = {kind.__name__: kind for kind in _tree(RlctlError)}
        kind = next((known[name] for name in self.kinds if name in known), BackendError)
        if issubclass(kind, errors.Interrupted):
            return BackendError(self.message, hint=self.hint)
        return kind(self.message, hint=self.hint)


def failure_of(error: Exception) -> Failure:
    """What a client is told of it. Of an error that nobody raised on purpose, no more than its type."""
    if isinstance(error, RlctlError):
        kinds = tuple(kind.__name__ for kind in type(error).__mro__ if issubclass(kind, RlctlError))
        return Failure(kinds, error.message, error.hint)
    if isinstance(error, MemoryError):
        return failure_of(OutOfMemory("the server is out of memory.", hint="lower the sizes of the run's batches."))
    failed = BackendError(
        f"the server failed: {type(error).__name__}.", hint="its log has the traceback, under the session's name."
    )
    return failure_of(failed)


def _tree(kind: type[RlctlError]) -> Iterator[type[RlctlError]]:
    yield kind
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from _tree(each)
