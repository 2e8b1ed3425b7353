"""Writing a run's checkpoints, in the background where the backend can copy its state first.

At most one is being written: the next one waits for it, so that memory holds one copy and no more. A checkpoint is
written aside, flushed, hashed as it reads back, sealed by its manifest and renamed; whatever fails on the way leaves
the earlier ones as they are.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlctl import durable
from rlctl.backends.base import AnyBackend, Snapshot
from rlctl.checkpoints import ahead, manifest, shelf
from rlctl.checkpoints.manifest import Manifest
from rlctl.checkpoints.shelf import Held, Keeping
from rlctl.checkpoints.state import CONFIG, STATE, RunState, versions
from rlctl.errors import CheckpointError, NonFiniteWeights
from rlctl.presets import did_you_mean
from rlctl.tokenizer import ChatTokenizer


class Saver:
    """Saves the checkpoints of one run.

    `failed` counts those that could not be written and were passed over, as `goes_on` allows.
    """

    def __init__(
        self,
        backend: AnyBackend,
        tokenizer: ChatTokenizer,
        *,
        folder: Path,
        config: Mapping[str, Any],
        keeping: Keeping,
        in_background: bool,
        goes_on: bool,
        note: Callable[[str], None],
    ) -> None:
        self.backend, self.tokenizer, self.folder, self.config = backend, tokenizer, folder, config
        self.keeping, self.in_background, self.goes_on, self.note = keeping, in_background, goes_on, note
        self.latest: Path | None = None
        self.latest_step = -1
        self.failed = 0
        self.longest_s = 0.0
        """That a checkpoint took, from the copy to its name."""
        self._seconds = 0.0
        self._writing: asyncio.Task[Path] | None = None
        self._writing_step = 0
        self._began = 0.0
        self._tokenizer_files: dict[str, bytes] = {}

    async def save(self, state: RunState, *, metrics: Mapping[str, Any], before: Callable[[], None]) -> None:
        """Begin to write the checkpoint of a step; `before` brings the logs to the disk, which must not lag behind it.

        Raises CheckpointError: also that of the one before it.
        """
        start = time.perf_counter()
        try:
            await self.finish()
            if state.step != self.latest_step:
                await asyncio.to_thread(before)
                await self._begin(state, metrics)
        except CheckpointError as error:
            self._judge(error)
        self._seconds += time.perf_counter() - start

    def spent(self) -> float:
        """Seconds that the run stood still for saving since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    async def finish(self) -> None:
        """Wait for what is being written. Raises CheckpointError unless the run goes on without it."""
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        try:
            # A write that is cancelled would go on in its thread; it is short, and its end is worth knowing.
            self.latest = await asyncio.shield(writing)
            self.latest_step = self._writing_step
        except asyncio.CancelledError:
            self._writing = writing
            raise
        except CheckpointError as error:
            self._judge(error)

    async def finish_if_done(self) -> None:
        """Take in what was written meanwhile, without waiting."""
        if self._writing is not None and self._writing.done():
            await self.finish()

    async def settle(self) -> None:
        """Wait for what is being written, when a run ends by an error that says more than this one's."""
        self.goes_on = True
        await self.finish()

    def _judge(self, error: CheckpointError) -> None:
        if not self.goes_on or isinstance(error, NonFiniteWeights):
            raise error
        self.failed += 1
        self.note(f"{error.message} The run goes on (trainer.on_save_error); earlier checkpoints are untouched.")

    async def _begin(self, state: RunState, metrics: Mapping[str, Any]) -> None:
        self._began = time.perf_counter()
        snapshot = await self.backend.snapshot() if self.in_background else None
        aside = self._aside(state.step)
        if snapshot is None:
            with self._cleared_up(aside):
                await asyncio.to_thread(_make_empty, aside)
                await self.backend.save(aside)
        self._writing_step = state.step
        known = {key: float(value) for key, value in metrics.items() if _is_number(value)}
        state = replace(state, best=self._best(state.step, known))
        self._writing = asyncio.create_task(asyncio.to_thread(self._write, aside, state, known, snapshot))
        if not self.in_background:
            await self.finish()

    def _best(self, step: int, metrics: Mapping[str, float]) -> dict[str, Any] | None:
        """The best checkpoint so far by `trainer.keep_best`, this one included."""
        metric = self.keeping.best
        if metric is None:
            return None
        name = metric.removeprefix("-")
        if name not in metrics:
            self.note(f"step {step} has no metric {name} (trainer.keep_best).{did_you_mean(name, metrics)}")
        this = Held(self._aside(step), Manifest(step, {}, metrics))
        best = shelf.best_of([*shelf.list_held(self.folder)[0], this], metric)
        return {"metric": name, "value": best.manifest.metrics[name], "step": best.step} if best else None

    def _aside(self, step: int) -> Path:
        return self.folder / f".{shelf.folder_of(self.folder, step).name}.partial"

    def _write(self, aside: Path, state: RunState, metrics: dict[str, float], snapshot: Snapshot | None) -> Path:
        with self._cleared_up(aside):
            expected: Mapping[str, str] = {}
            if snapshot is not None:
                _make_empty(aside)
                expected = snapshot.write(aside)
            for name, content in self._own_files(state).items():
                path = aside / name
                path.parent.mkdir(parents=True, exist_ok=True)
                durable.write(path, content)
            sealed = manifest.seal(aside, step=state.step, metrics=metrics, expected=expected)
            final = shelf.put(aside, self.folder, step=sealed.step)
        self.longest_s = max(self.longest_s, time.perf_counter() - self._began)
        shelf.prune(self.folder, self.keeping, good=sealed.step)
        return final

    @contextmanager
    def _cleared_up(self, aside: Path) -> Iterator[None]:
        """A write that fails leaves nothing, and becomes a CheckpointError that says how much room it needs."""
        try:
            yield
        except OSError as error:
            name, room = aside.name[1:].removesuffix(".partial"), _room(self.folder, self.latest, _size(aside))
            shutil.rmtree(aside, ignore_errors=True)
            raise CheckpointError(
                f"the checkpoint {self.folder / name} cannot be written: {error.strerror or error}{room}.",
                hint="free some space or set run.dir to another disk; earlier checkpoints are untouched.",
            ) from error
        except CheckpointError:
            shutil.rmtree(aside, ignore_errors=True)
            raise

    def _own_files(self, state: RunState) -> dict[str, bytes]:
        """What the driver adds to the backend's files: tokenizer, settings with versions, and where the run stands."""
        if not self._tokenizer_files:
            with tempfile.TemporaryDirectory() as folder:
                self.tokenizer.save(Path(folder))
                self._tokenizer_files = {
                    file.relative_to(folder).as_posix(): file.read_bytes() for file in durable.files_in(Path(folder))
                }
        config = json.dumps({"versions": versions(), **self.config}, indent=2, allow_nan=False) + "\n"
        own = {**self._tokenizer_files, CONFIG: config.encode(), STATE: state.text()}
        if state.ahead:
            try:
                own[ahead.FILE] = ahead.packed(state.ahead)
            except TypeError as error:
                self.note(f"the samples of {len(state.ahead)} later steps are not in this checkpoint: {error}")
        return own


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _room(folder: Path, latest: Path | None, written: int) -> str:
    """How many bytes a checkpoint takes, going by the last one, and how many are free."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    needed = f"needs {_size(latest):,} bytes as the last one, " if latest else f"needs more than {written:,} bytes, "
    return f" ({needed}{free:,} are free)"


def _size(folder: Path | None) -> int:
    try:
        return sum(file.stat().st_size for file in durable.files_in(folder)) if folder else 0
    except OSError:
        return 0


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
