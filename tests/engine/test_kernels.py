"""The C kernels against the same in torch, and the decode step made of them against the modules of transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlctl.engine import kernels, sampler, update
from rlctl.engine.draw import draw
from rlctl.engine.llama import recognise
from rlctl.engine.model import wrap
from rlctl.types import Sampling
from tests import defaults
from tests.engine.test_exactness import FAMILIES, family, plain_logprobs, sampled_rows, some_rows
from tests.tiny import build, tiny_config

LLAMA_SHAPED = {
    "Llama-3.2-1B-Instruct", "Llama-3.2-3B-Instruct", "Mistral-7B-Instruct-v0.3", "Qwen2.5-7B-Instruct", "Qwen3-0.6B",
    "Qwen3-8B", "SmolLM2-135M-Instruct",
}  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16]


def compiled(dtype: torch.dtype) -> kernels.Functions:
    found = kernels.elementwise(dtype)
    assert found is not None, "no C compiler: the kernels cannot be tested"
    return found


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As the families write it, roundings included."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cosine[:, None] + torch.cat([-high, low], dim=-1) * sine[:, None]


def angles(rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angle = torch.outer(torch.arange(rows) * 3.7, torch.arange(width // 2) + 0.1).repeat(1, 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def nearly_equal(ours: Tensor, expected: Tensor) -> None:
    """Equal but for the order of float32 sums, which in bfloat16 may tip a rounding: one unit in the last place."""
    rounding = 2e-6 if ours.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(ours.float(), expected.float(), rtol=rounding, atol=rounding / 10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 30), (64, 576), (5, 4099)])
def test_norm_adds_to_the_residual_and_normalises_it(dtype: torch.dtype, rows: int, width: int) -> None:
    torch.manual_seed(0)
    residual, delta = torch.randn(2, rows, width).to(dtype)
    weight, out, kept = torch.rand(width).to(dtype), torch.empty_like(residual), residual.clone()
    functions = compiled(dtype)
    functions.add_rms_norm(
        residual.data_ptr(), delta.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, width, 1e-5
    )  # fmt: skip
    assert torch.equal(residual, kept + delta)
    nearly_equal(out, rms_norm(kept + delta, weight, 1e-5))
    functions.add_rms_norm(kept.data_ptr(), None, weight.data_ptr(), out.data_ptr(), rows, width, 1e-5)
    nearly_equal(out, rms_norm(kept, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize(("rows", "heads", "kv_heads", "width"), [(1, 2, 1, 6), (33, 9, 3, 64)])
def test_heads_are_normalised_and_turned(
    dtype: torch.dtype, with_norms: bool, rows: int, heads: int, kv_heads: int, width: int
) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(rows, heads, width).to(dtype), torch.randn(rows, kv_heads, width).to(dtype)
    cosine, sine = angles(rows, width, dtype)
    norms = [torch.rand(width).to(dtype) if with_norms else None for _ in range(2)]
    expected = [
        turned(x if norm is None else rms_norm(x, norm, 1e-5), cosine, sine)
        for x, norm in zip((q, k), norms, strict=True)
    ]
    compiled(dtype).rotate(
        *(x.data_ptr() for x in (q, k, cosine, sine)), *(None if norm is None else norm.data_ptr() for norm in norms),
        rows, heads, kv_heads, width, heads * width, kv_heads * width, 1e-5,
    )  # fmt: skip
    nearly_equal(q, expected[0])
    nearly_equal(k, expected[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 17, 40_000])
def test_gate_is_silu_times_up(dtype: torch.dtype, count: int) -> None:
    torch.manual_seed(0)
    gate = torch.cat([torch.tensor([-300.0, -88.0, 0.0, 88.0, 300.0]), torch.randn(count) * 4]).to(dtype)
    up = torch.randn(len(gate)).to(dtype)
    expected = torch.nn.functional.silu(gate) * up
    compiled(dtype).silu_mul(gate.data_ptr(), up.data_ptr(), gate.data_ptr(), 1, len(gate), len(gate))
    nearly_equal(gate, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (37, 576)])
def test_gradient_of_the_norm(dtype: torch.dtype, rows: int, width: int) -> None:
    torch.manual_seed(0)
    x, grad_out, before = torch.randn(3, rows, width).to(dtype)
    weight = torch.rand(width).to(dtype)
    wide, wide_weight = x.double().requires_grad_(), weight.double().requires_grad_()
    expected = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5) * wide_weight
    expected.backward(grad_out.double())
    grad, out, by_weight = before.clone(), torch.empty_like(x), torch.empty(3, width)
    compiled(dtype).rms_norm_backward(
        *(t.data_ptr() for t in (grad_out, x, weight, grad, out, by_weight)), rows, width, 3, 1e-5
    )
    # In bfloat16 the normalised row is rounded once more, as the modules do.
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(out.double(), expected.detach(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(grad.double(), before + wide.grad, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(by_weight.sum(0).double(), wide_weight.grad, rtol=tolerance, atol=rows * tolerance / 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_turning_and_of_the_gate(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tolerance = 2e-6 if dtype == torch.float32 else 2**-7
    x, grad = torch.randn(2, 19, 3, 8).to(dtype)
    cosine, sine = angles(19, 8, dtype)
    wide = x.double().requires_grad_()
    turned(wide, cosine.double(), sine.double()).backward(grad.double())
    compiled(dtype).rotate_backward(grad.data_ptr(), cosine.data_ptr(), sine.data_ptr(), 19, 3, 8)
    torch.testing.assert_close(grad.double(), wide.grad, rtol=tolerance, atol=tolerance)

    gate_up, grad = (torch.randn(19, 46) * 3).to(dtype), torch.randn(19, 23).to(dtype)
    wide = gate_up.double().requires_grad_()
    expected = torch.nn.functional.silu(wide[:, :23]) * wide[:, 23:]
    expected.backward(grad.double())
    by_gate_up = torch.empty_like(gate_up)
    compiled(dtype).silu_mul_backward(grad.data_ptr(), gate_up.data_ptr(), by_gate_up.data_ptr(), 19, 23)
    torch.testing.assert_close(by_gate_up.double(), wide.grad, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(grad.double(), expected.detach(), rtol=tolerance, atol=tolerance)


@settings(max_examples=60, deadline=None)
@given(vocab=st.integers(1, 2000), seed=st.integers(0, 9), scale=st.sampled_from([0.0, 0.5, 4.0, 60.0]))
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_draws_the_token_that_torch_draws(dtype: torch.dtype, vocab: int, seed: int, scale: float) -> None:
    torch.manual_seed(seed)
    logits = (torch.randn(9, vocab) * scale).to(dtype)
    uniforms = np.random.default_rng(seed).random(9)
    sampling = defaults.sampling(temperature=0.7)
    tokens, logprobs = draw(logits, uniforms, sampling)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "draw", lambda _: None)
        expected, expected_logprobs = draw(logits, uniforms, sampling)
    # A uniform number within rounding of a border may fall on either side of it: none of these does.
    assert tokens.tolist() == expected.tolist()
    torch.testing.assert_close(logprobs, expected_logprobs, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_log_prob_tells_of_logits_that_are_not_finite(wrong: float) -> None:
    logits = torch.zeros(2, 300)
    logits[1, 7] = wrong
    logprobs = draw(logits, np.array([0.5, 0.5]), defaults.sampling())[1]
    assert torch.isfinite(logprobs).tolist() == [True, False]


def test_a_token_of_no_weight_is_never_drawn() -> None:
    logits = torch.full((3, 600), float("-inf"))
    logits[:, 300] = 0.0
    tokens, logprobs = draw(logits, np.array([0.0, 0.5, 1 - 2**-53]), defaults.sampling())
    assert (tokens.tolist(), logprobs.tolist()) == ([300] * 3, [0.0] * 3)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_of_that_shape_are_recognised_and_no_others(shared: Path, name: str) -> None:
    assert (wrap(family(shared, name)).llama is not None) == (name in LLAMA_SHAPED)


def test_a_family_that_was_not_read_is_computed_by_its_own_modules() -> None:
    # Granite has Llama's parts, and multiplies residuals, embeddings and scores; Ministral queries, at far positions.
    from transformers import GraniteConfig

    model = build(
        GraniteConfig(
            vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, residual_multiplier=0.5,
        )
    )  # fmt: skip
    assert recognise(model) is None


def test_a_decoder_that_gives_something_else_is_computed_by_its_own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(tiny_config())
    monkeypatch.setattr(model.model.layers[1].self_attn, "scaling", 0.2)
    assert wrap(model).llama is not None
    monkeypatch.setattr(model.model.layers[1], "forward", lambda hidden, **_: hidden)
    assert recognise(model) is not None
    assert wrap(model).llama is None


def test_a_weight_that_is_used_twice_in_a_layer_is_left_to_autograd() -> None:
    model = build(tiny_config())
    model.model.layers[0].self_attn.v_proj.weight = model.model.layers[0].self_attn.k_proj.weight
    assert recognise(model) is None


def test_a_norm_that_is_replaced_is_the_one_that_counts() -> None:
    model = build(tiny_config())
    policy = wrap(model)
    model.model.norm.weight = torch.nn.Parameter(torch.rand(32))
    rows = some_rows(260)
    ours = update.log_probs(policy, rows, compute=defaults.compute())
    for row, mine in zip(rows, ours, strict=True):
        with torch.no_grad():
            np.testing.assert_allclose(mine, plain_logprobs(model, row).numpy(), atol=1e-5)


@pytest.mark.parametrize("name", sorted(LLAMA_SHAPED))
def test_sampling_with_kernels_equals_sampling_without(
    shared: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = wrap(family(shared, name))
    assert policy.llama is not None
    options: Sampling = defaults.sampling(max_new_tokens=40)
    with_kernels = sampled_rows(policy, options, n=5)
    for function in ("elementwise", "draw", "decode_attention", "attention_tiles", "logits"):
        monkeypatch.setattr(kernels, function, lambda *_: None)
    policy = replace(policy, llama=None)
    for ours, plain in zip(with_kernels, sampled_rows(policy, options, n=5), strict=True):
        assert ours.completion_ids.tolist() == plain.completion_ids.tolist()
        np.testing.assert_allclose(ours.rollout_logprobs, plain.rollout_logprobs, atol=1e-4)


def test_without_kernels_the_modules_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "elementwise", lambda *_: None)
    assert wrap(build(tiny_config())).llama is None
    assert sampler.kv_shape(wrap(build(tiny_config()))).layers == 2
