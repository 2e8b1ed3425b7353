"""Save again and again on a disk that fails at the k-th call, for every k: run by test_faults.py under the shim.

Prints one JSON object: how many saves met the fault in each mode, and how many of those were refused.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlctl.backends.local.backend import LocalBackend
from rlctl.backends.local.settings import LocalSettings
from rlctl.checkpoints import shelf
from rlctl.checkpoints.saver import Saver
from rlctl.checkpoints.shelf import Keeping
from rlctl.checkpoints.state import RunState
from rlctl.errors import CheckpointError
from rlctl.tokenizer import ChatTokenizer
from rlctl.types import TrainRow
from tests import defaults
from tests.tiny import byte_tokenizer

MODES = {"disk full": 1, "read-only": 2, "half written": 3}
LOSS = defaults.loss()


async def train_a_little(backend: LocalBackend, step: int) -> None:
    ids = np.array([70 + step % 50, 71, 72], np.int32)
    row = TrainRow(ids, ids, 1.0, np.full(3, -1.0, np.float32))
    await backend.forward_backward([row], loss=LOSS, loss_denominator=3.0)
    await backend.optim_step(1e-3)


def masters(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / "trainer.pt", weights_only=True)["masters"]
    return found


def snapshot_of(backend: LocalBackend) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in backend.optimizer.master_state().items()}


async def all_saves(backend: LocalBackend, saver: Saver, disk: Any) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    step = 1
    await save(saver, step)
    good = snapshot_of(backend)
    for name, mode in MODES.items():
        met = refused = 0
        k = 0
        fired = True
        while fired:
            k, step = k + 1, step + 1
            await train_a_little(backend, step)
            disk.fault_arm(k, mode)
            try:
                await save(saver, step)
                took = True
            except CheckpointError:
                took = False
            fired = bool(disk.fault_fired())
            disk.fault_arm(0, 0)
            met, refused = met + fired, refused + (fired and not took)
            if took:
                good = snapshot_of(backend)
            must_be_good(saver.folder, good, took=took, step=step)
        counts[name] = {"met": met, "refused": refused}
    return counts


def must_be_good(folder: Path, good: dict[str, Any], *, took: bool, step: int) -> None:
    shelf.tidy(folder)
    found = shelf.latest(folder)
    assert found.held is not None
    # A save that says it failed may have got its name before it did: then it is whole, and holds newer weights.
    if took or found.held.step < step:
        saved = masters(found.held.folder)
        assert all(torch.equal(saved[name], good[name]) for name in good), (step, found.held)


async def save(saver: Saver, step: int) -> None:
    state = RunState(step=step, total_steps=9, learning_rate=0.1, data={}, problems={})
    await saver.save(state, metrics={}, before=lambda: None)
    await saver.finish()


async def main(model: str, folder: Path) -> None:
    backend = LocalBackend(
        LocalSettings(dtype="bfloat16"),
        defaults.job(max_prompt_length=16, max_response_length=16, model=model, end_token_ids=(256,)),
    )
    saver = Saver(
        backend, ChatTokenizer(byte_tokenizer()), folder=folder / "checkpoints", config={}, note=print,
        keeping=Keeping(2, None, None), in_background=True, goes_on=False,
    )  # fmt: skip
    saver.folder.mkdir()
    try:
        await backend.start()
        counts = await all_saves(backend, saver, ctypes.CDLL(None))
    finally:
        await backend.close()
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
