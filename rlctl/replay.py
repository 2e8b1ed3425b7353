"""Compute the update of a dump again, the whole minibatch and each row alone, to see which row it is.

The weights are those that the dump's update met. A step at learning rate 0 measures the norm of a gradient; what it
does to AdamW's moments is of no use to anybody afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlctl.backends.base import AnyBackend
from rlctl.dumps import Dump
from rlctl.errors import ConfigError
from rlctl.settings import Settings
from rlctl.types import TrainRow


@dataclass(frozen=True, slots=True)
class Replayed:
    """Loss and gradient's norm of some rows; `row` is None for all of them."""

    row: int | None
    loss: float
    grad_norm: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def settings_of(dump: Dump) -> Settings:
    """The settings of the run that wrote the dump. Raises ConfigError."""
    from rlctl.config import load
    from rlctl.layers import Layer

    return load(base=Layer(str(dump.folder), dict(dump.settings), {})).settings


async def replay(dump: Dump, *, backend: AnyBackend, settings: Settings) -> list[Replayed]:
    """The whole minibatch first, then each row. Raises ConfigError when the weights are missing."""
    if not dump.weights.is_dir():
        raise ConfigError(f"{dump.folder} has no weights, so nothing can be computed from it.")

    async def measured(row: int | None, rows: Sequence[TrainRow]) -> Replayed:
        denominator = dump.refused.loss_denominator
        stats = await backend.forward_backward(rows, loss=settings.loss(), loss_denominator=denominator)
        return Replayed(row, stats.loss, (await backend.optim_step(0.0)).grad_norm)

    try:
        await backend.start()
        await backend.load(dump.weights)
        whole = await measured(None, dump.refused.rows)
        return [whole, *[await measured(i, [row]) for i, row in enumerate(dump.refused.rows)]]
    finally:
        await backend.close()
