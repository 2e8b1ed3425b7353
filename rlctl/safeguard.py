"""What becomes of losses, gradients and weights that are not finite: counted, dumped, and rolled back from by policy.

No such update is ever taken: the backend refuses it. After `trainer.max_skipped_updates` in a row the run ends, or
takes the weights of its last good checkpoint and goes on with the next problems (`trainer.on_non_finite`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from rlctl import dumps
from rlctl.backends.base import AnyBackend
from rlctl.checkpoints import shelf
from rlctl.checkpoints.saver import Saver
from rlctl.checkpoints.state import RunState, read_state
from rlctl.config import dump
from rlctl.errors import CheckpointError, NonFinite, NonFiniteGradient
from rlctl.settings import Settings
from rlctl.step_report import Refused, StepReport


class Safeguard:
    """Counts refused updates in a row and rollbacks; both are part of a checkpoint."""

    def __init__(
        self,
        settings: Settings,
        backend: AnyBackend,
        *,
        saver: Saver | None,
        folder: Path | None,
        note: Callable[[str], None],
    ) -> None:
        """`folder` takes the dumps; None where a run writes nothing."""
        self.settings, self.backend, self.saver, self.folder, self.note = settings, backend, saver, folder, note
        self.skipped_in_a_row = self.rollbacks = 0

    @property
    def rolls_back(self) -> bool:
        return self.settings.trainer.on_non_finite == "rollback" and self.saver is not None

    def count(self, done: StepReport) -> None:
        """Raises NonFiniteGradient after too many updates in a row that were not taken."""
        for update, loss in zip(done.updates, done.losses, strict=True):
            self.skipped_in_a_row = 0 if update.stepped else self.skipped_in_a_row + 1
            if not update.stepped:
                what = f"the gradient's norm is {update.grad_norm}, the loss {loss.loss:g}"
                self.note(f"step {done.step}: {what}; this update was skipped")
            if self.skipped_in_a_row >= self.settings.trainer.max_skipped_updates:
                raise NonFiniteGradient(
                    f"loss or gradient were not finite {self.skipped_in_a_row} times in a row, last at step "
                    f"{done.step}.",
                    hint="lower trainer.lr, or look at `rlctl debug replay` of a folder in dumps/; checkpoints of "
                    "earlier steps are untouched.",
                )

    async def keep(self, step: int, refused: Refused) -> None:
        """Dump the first of some refused updates in a row, with the weights it met."""
        folder = dumps.folder_of(self.folder, step) if self.folder else None
        if self.skipped_in_a_row or folder is None or folder.exists():
            return
        try:
            dumps.write(folder, step=step, refused=refused, settings=dump(self.settings))
            await self.backend.save(folder / dumps.WEIGHTS)
        except (OSError, CheckpointError) as error:
            self.note(f"{folder} cannot be written: {error}")
            return
        self.note(f"step {step}: the rows and weights are in {folder}; `rlctl debug replay` computes them again")

    async def roll_back(self, error: NonFinite) -> RunState:
        """Take the weights of the last good checkpoint, whose state is given. Raises the error where that may not or
        cannot be."""
        if not self.rolls_back or self.saver is None or self.rollbacks >= self.settings.trainer.max_rollbacks:
            raise error
        await self.saver.finish()
        found = await asyncio.to_thread(shelf.latest, self.saver.folder)
        if found.held is None:
            raise error
        state = await asyncio.to_thread(read_state, found.held.folder)
        await self.backend.load(found.held.folder)
        await self.backend.sync_weights()
        self.rollbacks, self.skipped_in_a_row = self.rollbacks + 1, 0
        self.note(f"{error.message} Back to the weights of {found.held.folder.name}, and on")
        return state
