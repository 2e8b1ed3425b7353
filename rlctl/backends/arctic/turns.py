"""Whose turn it is on shared devices: what sleeps and wakes before a verb of the sampler or of the trainer.

The platform moves nothing by itself: sampling while asleep is an error 500, and what reads the trainer's weights or
optimizer reads them wherever they were left.
"""

from __future__ import annotations

from typing import Any

from rlctl.backends.arctic.calls import ClientThread
from rlctl.backends.arctic.settings import ArcticSettings
from rlctl.errors import BackendError


class Turns:
    """What is awake, and the calls that change it."""

    def __init__(self, settings: ArcticSettings, thread: ClientThread) -> None:
        self._settings, self._thread = settings, thread
        # Jobs are made awake; those that are attached to were left as somebody else's last call had them.
        known = None if settings.attaches and settings.colocate else True
        self._sampler: bool | None = known
        """Whether it is awake; None is not known."""
        self._trainer: bool | None = known

    async def trainer(self) -> None:
        """The trainer may compute. Colocated, the sampler gives its memory to it."""
        if self._settings.colocate and self._sampler is not False:
            await self._thread.call("sleep_inference", level=1)
            self._sampler = False
        await self._wake_trainer()

    async def weights(self) -> None:
        """The trainer's weights and optimizer may be read or written, which while it sleeps they may not."""
        if self._trainer is not True:
            await self.trainer()

    async def _wake_trainer(self) -> None:
        if self._trainer is not True:
            await self._thread.call("wake_training")
            self._trainer = True

    async def sampler(self) -> None:
        """The sampler may sample."""
        if self._sampler is True:
            return
        if self._gives_memory and self._trainer is not False:
            await self._thread.call("sleep_training", mode="all")
            self._trainer = False
        for tag in ("weights", "kv_cache"):  # in this order, or the platform refuses
            await self._thread.call("wake_inference", tags=[tag])
        self._sampler = True

    @property
    def _gives_memory(self) -> bool:
        return self._settings.sleep_training and self._settings.colocate

    async def sync(self) -> None:
        """Bring the sampler, which is awake afterwards, to the trainer's weights."""
        settings = self._settings
        await self.weights()
        if self._gives_memory:
            await self._thread.call("sleep_training", mode="non_lp")
            self._trainer = False
        reply: Any = await self._thread.call("sync_weights", cuda_ipc=settings.cuda_ipc, low_memory=settings.low_memory)
        if not isinstance(reply, dict) or reply.get("status") != "ok":
            raise BackendError(f"the platform's sync_weights did not say ok: {str(reply)[:120]}.")
        self._sampler = True
        if self._gives_memory:
            await self._thread.call("sleep_training", mode="lp_params")
