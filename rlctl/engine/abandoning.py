"""Long work that is given up: asked between tokens and micro-batches, where nothing is left half done."""

from __future__ import annotations

from collections.abc import Callable


class Abandoned(Exception):
    """Nobody waits for this result any more."""


def never() -> bool:
    return False


def must_go_on(abandoned: Callable[[], bool]) -> None:
    """Raises Abandoned once the work is to be given up."""
    if abandoned():
        raise Abandoned
