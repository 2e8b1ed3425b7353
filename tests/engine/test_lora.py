from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlctl.backends.local.backend import LocalBackend
from rlctl.backends.local.settings import LocalSettings
from rlctl.engine import lora, update
from rlctl.engine.model import wrap
from rlctl.engine.optimizer import MasterOptimizer
from rlctl.errors import ModelError
from rlctl.types import LoraSpec, TrainRow
from tests import defaults
from tests.engine.test_exactness import sampled_rows, some_rows
from tests.tiny import build, tiny_config

SPEC = LoraSpec(rank=4, alpha=8.0, target_modules=("all-linear",))


def adapted(*, trained: bool = True, spec: LoraSpec = SPEC) -> Any:
    model = build(tiny_config())
    lora.inject(model, spec)
    if trained:
        torch.manual_seed(3)
        for name, p in model.named_parameters():
            if ".lora_B." in name:
                torch.nn.init.normal_(p, std=0.1)
    return model


def logprobs(model: Any, rows: list[TrainRow]) -> np.ndarray:
    return np.concatenate(update.log_probs(wrap(model), rows, compute=defaults.compute()))


def test_fresh_factors_change_nothing_and_trained_ones_do() -> None:
    rows = some_rows(260)
    plain = logprobs(build(tiny_config()), rows)
    np.testing.assert_allclose(logprobs(adapted(trained=False), rows), plain, atol=1e-6)
    assert np.abs(logprobs(adapted(), rows) - plain).max() > 1e-2


def test_merged_weights_and_switched_off_factors_are_plain_models() -> None:
    rows, model = some_rows(260), adapted()
    merged = build(tiny_config())
    merged.load_state_dict(lora.merged_state(model))
    np.testing.assert_allclose(logprobs(merged, rows), logprobs(model, rows), atol=1e-5)
    with lora.switched_off(model):
        off = logprobs(model, rows)
    np.testing.assert_allclose(off, logprobs(build(tiny_config()), rows), atol=1e-6)


def test_only_factors_are_trained_and_their_gradient_is_that_of_the_merged_model() -> None:
    # d loss / dB = scale * (d loss / dW) A^T, where W is the weight of the merged model.
    rows, model = some_rows(260), adapted()
    merged = build(tiny_config())
    merged.load_state_dict(lora.merged_state(model))
    for m in (model, merged):
        update.forward_backward(
            wrap(m), rows, loss=defaults.loss(), loss_denominator=9.0, compute=defaults.compute(max_tokens=40)
        )
    full = dict(merged.named_parameters())
    assert all((".lora_" in name) == p.requires_grad == (p.grad is not None) for name, p in model.named_parameters())
    for name, layer in lora.layers(model).items():
        a, b = (getattr(layer, f"lora_{x}")["default"].weight for x in "AB")
        expected = SPEC.alpha / SPEC.rank * full[f"{name}.weight"].grad @ a.detach().T
        torch.testing.assert_close(b.grad, expected, rtol=1e-4, atol=1e-6)


def test_a_step_leaves_the_frozen_weights_alone() -> None:
    model = adapted()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = MasterOptimizer(model, dtype=torch.float32, job=defaults.job())
    update.forward_backward(
        wrap(model), some_rows(260), loss=defaults.loss(), loss_denominator=9.0, compute=defaults.compute()
    )
    optimizer.step(1e-2)
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {name for name in before if ".lora_" in name}


def test_sampling_uses_the_factors() -> None:
    policy = wrap(adapted())
    rows = sampled_rows(policy, defaults.sampling(max_new_tokens=6), n=3)
    again = update.log_probs(policy, rows, compute=defaults.compute())
    for row, expected in zip(rows, again, strict=True):
        np.testing.assert_allclose(row.rollout_logprobs, expected, atol=1e-4)


def test_flops_count_no_gradient_of_frozen_weights() -> None:
    shape = wrap(adapted()).shape
    assert shape is not None
    body, adapter, head = shape.body_parameters, shape.adapter_parameters, shape.head_parameters
    assert adapter == sum(p.numel() for name, p in adapted().named_parameters() if ".lora_" in name)
    by_hand = 10 * (4 * body + 6 * adapter) + 4 * 7 * head + 3 * 4 * 11 * shape.attention_width
    assert shape.train_flops(tokens=10, predicted=7, pairs=11) == by_hand


def test_an_unknown_target_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match="q_projj") as error:
        adapted(spec=LoraSpec(4, 8.0, ("q_projj",)))
    assert "q_proj" in (error.value.hint or "")


def test_a_run_with_lora_saves_a_plain_model_and_the_adapter(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    rows = some_rows(260)
    model = tmp_path / "model"
    build(tiny_config()).save_pretrained(model)
    job = defaults.job(
        model=str(model),
        lora=SPEC,
        needs_reference=True,
        end_token_ids=(2,),
        max_prompt_length=64,
        max_response_length=64,
    )

    async def steps() -> tuple[LocalBackend, list[np.ndarray], list[np.ndarray]]:
        backend = LocalBackend(LocalSettings(dtype="float32"), job)
        await backend.start()
        before = await backend.log_probs(rows, reference=True)
        await backend.forward_backward(rows, loss=defaults.loss(), loss_denominator=9.0)
        await backend.optim_step(0.05)
        report = await backend.sync_weights()
        assert report.names_sent == report.names_expected == len(backend.optimizer.names)
        np.testing.assert_allclose(
            np.concatenate(await backend.log_probs(rows, reference=True)), np.concatenate(before)
        )
        await backend.save(tmp_path / "out")
        return backend, await backend.log_probs(rows), before

    backend, now, before = asyncio.run(steps())
    assert np.abs(np.concatenate(now) - np.concatenate(before)).max() > 1e-3
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="rlctl_shared_prefix").eval()
    np.testing.assert_allclose(logprobs(loaded, rows), np.concatenate(now), atol=1e-4)

    from peft import AutoPeftModelForCausalLM

    # It finds the base model by itself.
    peft_model = AutoPeftModelForCausalLM.from_pretrained(
        tmp_path / "out/adapter", attn_implementation="rlctl_shared_prefix"
    ).eval()
    np.testing.assert_allclose(logprobs(peft_model.base_model.model, rows), np.concatenate(now), atol=1e-4)
    asyncio.run(backend.close())
