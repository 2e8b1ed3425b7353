"""What the local backend saves: tied weights, dtypes, the export that transformers loads, damage that is noticed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlctl.backends.local.backend import LocalBackend
from rlctl.backends.local.settings import LocalSettings
from rlctl.backends.local.snapshot import must_be_whole
from rlctl.errors import CheckpointError, NonFiniteWeights
from rlctl.types import TrainRow
from tests import defaults
from tests.tiny import save_tiny_llama


def trained(model: Path, folder: Path, **settings: Any) -> tuple[LocalBackend, Any]:
    """A backend after one update, saved into the folder, and the logits of its compute weights."""
    backend = LocalBackend(
        LocalSettings(**settings), defaults.job(max_prompt_length=16, max_response_length=16, model=str(model))
    )

    async def work() -> Any:
        try:
            await backend.start()
            ids = np.array([70, 71, 72], np.int32)
            row = TrainRow(ids, ids, 1.0, np.full(3, -1.0, np.float32))
            await backend.forward_backward([row], loss=defaults.loss(), loss_denominator=3.0)
            await backend.optim_step(1e-2)
            await backend.save(folder)
            with torch.no_grad():
                return backend.policy.causal_lm.state_dict()
        finally:
            await backend.close()

    state = asyncio.run(work())
    return backend, state


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transformers_loads_what_was_saved(tmp_path: Path, tied: bool, dtype: str) -> None:
    # Field fault 130: tied tensors.
    from transformers import AutoModelForCausalLM

    save_tiny_llama(tmp_path / "model", tie_word_embeddings=tied)
    _, state = trained(tmp_path / "model", tmp_path / "saved", dtype=dtype)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").state_dict()
    assert loaded.keys() == state.keys()
    for name, tensor in state.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor), name
    same = loaded["lm_head.weight"].data_ptr() == loaded["model.embed_tokens.weight"].data_ptr()
    assert same == tied


def test_moments_and_masters_stay_float32(tiny_llama: Path, tmp_path: Path) -> None:
    # Field fault 129: bfloat16 weights with float32 moments.
    trained(tiny_llama, tmp_path / "saved", dtype="bfloat16")
    state = torch.load(tmp_path / "saved/trainer.pt", weights_only=True)
    assert {t.dtype for t in state["masters"].values()} == {torch.float32}
    moments = list(state["adamw"]["state"].values())
    assert len(moments) == len(state["masters"])
    assert {moment[key].dtype for moment in moments for key in ("exp_avg", "exp_avg_sq")} == {torch.float32}
    assert {float(moment["step"]) for moment in moments} == {1.0}
    restored = LocalBackend(
        LocalSettings(dtype="bfloat16"),
        defaults.job(max_prompt_length=16, max_response_length=16, model=str(tiny_llama)),
    )

    async def load() -> Any:
        try:
            await restored.start()
            await restored.load(tmp_path / "saved")
            return restored.optimizer.adamw.state_dict()["state"], restored.optimizer.master_state()
        finally:
            await restored.close()

    again, masters = asyncio.run(load())
    for i, moment in enumerate(moments):
        for key in ("exp_avg", "exp_avg_sq", "step"):
            assert again[i][key].dtype == torch.float32
            assert torch.equal(again[i][key], moment[key])
    assert all(torch.equal(masters[name], tensor) for name, tensor in state["masters"].items())


def test_another_models_checkpoint_is_refused_by_name_and_shape(tiny_llama: Path, tmp_path: Path) -> None:
    save_tiny_llama(tmp_path / "wide", intermediate_size=64)
    trained(tmp_path / "wide", tmp_path / "saved", dtype="float32")
    backend = LocalBackend(
        LocalSettings(dtype="float32"),
        defaults.job(max_prompt_length=16, max_response_length=16, model=str(tiny_llama)),
    )

    async def load() -> None:
        try:
            await backend.start()
            await backend.load(tmp_path / "saved")
        finally:
            await backend.close()

    with pytest.raises(CheckpointError, match=r"mlp\.gate_proj\.weight: \(64, 32\) there, \(48, 32\) here"):
        asyncio.run(load())


def test_weights_that_are_not_finite_are_not_copied(tiny_llama: Path, tmp_path: Path) -> None:
    backend = LocalBackend(
        LocalSettings(dtype="float32"),
        defaults.job(max_prompt_length=16, max_response_length=16, model=str(tiny_llama)),
    )

    async def save() -> None:
        try:
            await backend.start()
            with torch.no_grad():
                backend.optimizer.masters[0].view(-1)[5] = float("inf")
            await backend.save(tmp_path / "saved")
        finally:
            await backend.close()

    with pytest.raises(NonFiniteWeights):
        asyncio.run(save())
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_a_library_cut_short_is_noticed(tiny_llama: Path, tmp_path: Path, name: str) -> None:
    trained(tiny_llama, tmp_path / "saved", dtype="float32")
    must_be_whole(tmp_path / "saved")
    file = tmp_path / "saved" / name
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(Exception, match=r"read back|incomplete|Incomplete|deserializ"):
        must_be_whole(tmp_path / "saved")


def test_a_long_verb_that_nobody_waits_for_ends_soon(tiny_llama: Path) -> None:
    from rlctl.types import Prompt
    from tests.backends.test_contract import SAMPLING

    async def work() -> tuple[float, float, Any]:
        backend = LocalBackend(
            LocalSettings(dtype="float32"),
            defaults.job(max_prompt_length=16, max_response_length=16, model=str(tiny_llama), end_token_ids=(256,)),
        )
        try:
            await backend.start()
            ids = np.array([70, 71, 72], np.int32)
            row = TrainRow(ids, ids, 1.0, np.full(3, -1.0, np.float32))
            await backend.forward_backward([row], loss=defaults.loss(), loss_denominator=3.0)
            prompts = [Prompt(ids, seed) for seed in range(4000)]
            task = asyncio.create_task(backend.generate(prompts, n=8, sampling=SAMPLING))
            await asyncio.sleep(0.2)
            assert not task.done()
            backend.abandon()
            task.cancel()
            loop = asyncio.get_running_loop()
            start = loop.time()
            await backend.snapshot()
            waited = loop.time() - start
            # The gradient from before went with what was given up.
            return (
                waited,
                (await backend.optim_step(0.0)).grad_norm,
                await backend.generate(prompts[:1], n=1, sampling=SAMPLING),
            )
        finally:
            await backend.close()

    waited, norm, again = asyncio.run(work())
    assert waited < 2.0
    assert norm == 0.0
    assert len(again) == 1
