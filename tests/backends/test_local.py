"""What is particular to the in-process backend."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlctl.backends.base import AnyBackend
from rlctl.backends.local.backend import LocalBackend, must_fit_context
from rlctl.backends.local.settings import LocalSettings
from rlctl.errors import BackendError, BackendUnavailable, CheckpointError, ModelError
from rlctl.types import Prompt, TrainRow
from tests import defaults
from tests.tiny import build, save_tiny_llama, tiny_config

ROWS = [
    TrainRow(np.array([1, 2, 3], np.int32), np.array([4 + i, 5, 256], np.int32), (-1.0) ** i, np.zeros(3, np.float32))
    for i in range(4)
]


def backend(folder: Path, *, dtype: str = "float32", **job: Any) -> LocalBackend:
    spec = defaults.job(model=str(folder), end_token_ids=(256,), max_prompt_length=64, max_response_length=64, **job)
    return LocalBackend(LocalSettings(dtype=dtype), spec)  # type: ignore[arg-type]


async def train_once(held: AnyBackend) -> None:
    await held.start()
    await held.forward_backward(ROWS, loss=defaults.loss(), loss_denominator=12.0)
    await held.optim_step(0.01)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_saved_model_gives_the_same_logits_in_plain_transformers(tmp_path: Path, tied: bool, dtype: str) -> None:
    # Field fault 130.
    from transformers import AutoModelForCausalLM

    save_tiny_llama(tmp_path / "model", tie_word_embeddings=tied)

    async def work() -> torch.Tensor:
        held = backend(tmp_path / "model", dtype=dtype)
        await train_once(held)
        await held.save(tmp_path / "saved")
        causal_lm: Any = held.policy.causal_lm
        causal_lm.set_attn_implementation("eager")
        with torch.no_grad():
            return causal_lm(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False).logits

    expected = asyncio.run(work())
    config = json.loads((tmp_path / "saved/config.json").read_text())
    assert config["dtype"] == dtype
    assert "rlctl" not in json.dumps(config)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", attn_implementation="eager")
    assert loaded.dtype == getattr(torch, dtype)
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False).logits, expected)


def test_a_head_the_trainer_does_not_write_is_an_error_at_sync(tiny_llama: Path) -> None:
    # Field fault 133: somebody untied the head behind the trainer's back.
    async def work() -> None:
        held = backend(tiny_llama)
        await held.start()
        causal_lm: Any = held.policy.causal_lm
        causal_lm.lm_head.weight = nn.Parameter(causal_lm.lm_head.weight.detach().clone())
        with pytest.raises(BackendError, match=r"lm_head\.weight"):
            await held.sync_weights()

    asyncio.run(work())


def test_the_reference_shares_no_storage_with_the_policy(tiny_llama: Path) -> None:
    # Field fault 024.
    async def work() -> None:
        held = backend(tiny_llama, needs_reference=True)
        await held.start()
        assert held._reference is not None
        pointers = [{p.data_ptr() for p in policy.causal_lm.parameters()} for policy in (held.policy, held._reference)]
        assert not pointers[0] & pointers[1]

    asyncio.run(work())


def test_no_reference_is_loaded_unless_it_is_needed(tiny_llama: Path) -> None:
    async def work() -> None:
        held = backend(tiny_llama)
        await held.start()
        assert held._reference is None
        with pytest.raises(BackendError, match="no reference model is loaded"):
            await held.log_probs(ROWS, reference=True)

    asyncio.run(work())


def test_verbs_before_start_and_after_close_say_so(tiny_llama: Path) -> None:
    async def work() -> None:
        with pytest.raises(BackendError, match="not started"):
            await backend(tiny_llama).optim_step(0.1)
        held = backend(tiny_llama)
        await held.start()
        await held.close()
        with pytest.raises(BackendError, match="closed"):
            await held.optim_step(0.1)

    asyncio.run(work())


def test_asking_for_a_device_that_is_not_there_is_unavailable(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    held = LocalBackend(LocalSettings(device="cuda"), defaults.job(model=str(tiny_llama)))
    with pytest.raises(BackendUnavailable, match="finds no CUDA device"):
        asyncio.run(held.start())


def test_weights_that_are_not_finite_are_not_saved(tiny_llama: Path, tmp_path: Path) -> None:
    async def work() -> None:
        held = backend(tiny_llama)
        await held.start()
        with torch.no_grad():
            held.optimizer.masters[0][0] = float("inf")
        with pytest.raises(CheckpointError, match="not finite"):
            await held.save(tmp_path / "saved")

    asyncio.run(work())
    assert not (tmp_path / "saved").exists()


def test_a_damaged_checkpoint_is_told_in_one_line(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "trainer.pt").write_bytes(b"not a checkpoint")

    async def work() -> None:
        held = backend(tiny_llama)
        await held.start()
        with pytest.raises(CheckpointError, match="cannot be read"):
            await held.load(tmp_path)

    asyncio.run(work())


def test_a_model_with_broken_weights_is_refused(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot be loaded"):
        asyncio.run(backend(tmp_path).start())


def test_a_model_with_weights_missing_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_tiny_llama(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state.pop("model.layers.1.mlp.up_proj.weight")
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights are not in its files \(model\.layers\.1\.mlp\.up_proj\.weight"):
        asyncio.run(backend(tmp_path).start())


def test_a_model_whose_weights_are_not_finite_is_refused(tmp_path: Path) -> None:
    model: Any = build(tiny_config())
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"model\.norm\.weight is not finite"):
        asyncio.run(backend(tmp_path).start())


def test_sequences_beyond_the_context_are_refused(tiny_llama: Path) -> None:
    held = backend(tiny_llama)
    held.job = replace(held.job, max_response_length=500)
    with pytest.raises(ModelError, match="= 564 tokens, the model's context is 512"):
        asyncio.run(held.start())


def test_rotary_scaling_that_depends_on_the_batch_is_refused() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    config = tiny_config(rope_parameters=rope)
    must_fit_context(config, 64)
    with pytest.raises(ModelError, match="switch the model's dynamic rotary scaling"):
        must_fit_context(config, 65)


def test_a_token_the_model_does_not_know_is_refused(tiny_llama: Path) -> None:
    async def work() -> None:
        held = backend(tiny_llama)
        await held.start()
        with pytest.raises(ModelError, match="holds token 300, the model knows 260"):
            await held.generate(
                [Prompt(np.array([1, 300], np.int32), 0)], n=2, sampling=defaults.sampling(max_new_tokens=2)
            )

    asyncio.run(work())
