"""Trackers that somebody else might write, good and bad; a test names them as `tests.trackers.foreign:Class`."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from rlctl.trackers.base import State, TrackedRun


class Recording:
    """Writes every call to a file."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def _add(self, *words: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(words) + "\n")

    def start(self, run: TrackedRun) -> int:
        self._add("start", run.name, run.id, run.after, run.sent, dict(run.parameters))
        return run.sent

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._add("log", step, dict(metrics))

    def finish(self, state: State) -> None:
        self._add("finish", state)


class Failing(Recording):
    """Fails at its second step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == 2:
            raise ConnectionError("the server\nhas gone")
        super().log(step, metrics)


class Exiting(Recording):
    """Ends the process, as a library may that finds no credentials."""

    def start(self, run: TrackedRun) -> int:
        raise SystemExit(1)


class Hanging(Recording):
    """Never returns from its first step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        threading.Event().wait()


class Forgetful(Recording):
    """Says nothing of what it holds."""

    def start(self, run: TrackedRun) -> int:
        super().start(run)
        return None  # type: ignore[return-value]


class Unspeakable(Recording):
    """Raises what cannot be told."""

    def start(self, run: TrackedRun) -> int:
        class Broken(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        raise Broken


class FailingLast(Recording):
    """Fails when all else is done."""

    def finish(self, state: State) -> None:
        raise ConnectionError("the server has gone")


class NoMethods:
    """Is no tracker."""


class Broken:
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no licence")
