from __future__ import annotations

import pytest
import torch

from rlctl.engine.logprobs import token_logprobs


def of_logits(logits: list[float], *, temperature: float, tile: int | None) -> float:
    """Log-prob of word 0 when the logits are these: hidden is their row, the head the identity."""
    hidden, head = torch.tensor([logits]), torch.eye(len(logits))
    logp, _ = token_logprobs(hidden, head, torch.tensor([0]), temperature=temperature, tile_tokens=tile)
    return logp.item()


@pytest.mark.parametrize("tile", [None, 1])
@pytest.mark.parametrize(
    ("temperature", "expected"), [(0.5, -0.142932), (0.6, -0.202573), (2.0, -0.680270), (1.0, -0.407606)]
)
def test_logits_are_divided_by_the_temperature(temperature: float, expected: float, tile: int | None) -> None:
    # Field fault 028.
    assert of_logits([2.0, 1.0, 0.0], temperature=temperature, tile=tile) == pytest.approx(expected, abs=1e-6)


def test_bfloat16_weights_give_float32_logprobs_that_are_not_positive() -> None:
    # Field fault 030: a softmax in bfloat16 is off by percents and can exceed 0.
    torch.manual_seed(0)
    hidden, head = torch.randn(64, 32).bfloat16(), torch.randn(5000, 32).bfloat16()
    targets = (hidden @ head.T).argmax(-1)
    logp, entropy = token_logprobs(hidden, head, targets, tile_tokens=7)
    reference = (hidden @ head.T).float().log_softmax(-1).gather(1, targets[:, None])[:, 0]
    assert logp.dtype == entropy.dtype == torch.float32
    assert bool((logp <= 0).all())
    torch.testing.assert_close(logp.exp() / reference.exp(), torch.ones(64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("tile", [1, 5, 1000])
def test_tiled_values_and_gradients_equal_untiled_ones(tile: int, temperature: float, with_bias: bool) -> None:
    torch.manual_seed(1)
    hidden, head, targets = torch.randn(13, 8), torch.randn(31, 8), torch.randint(31, (13,))
    bias = torch.randn(31) if with_bias else None
    for_logp, for_entropy = torch.randn(13), torch.randn(13)

    def run(tile_tokens: int | None) -> list[torch.Tensor]:
        leaves = [t.clone().requires_grad_() for t in (hidden, head, *([bias] if bias is not None else []))]
        logp, entropy = token_logprobs(
            leaves[0], leaves[1], targets, bias_V=leaves[2] if with_bias else None,
            temperature=temperature, tile_tokens=tile_tokens,
        )  # fmt: skip
        (logp @ for_logp + entropy @ for_entropy).backward()
        return [logp.detach(), entropy.detach(), *(leaf.grad for leaf in leaves)]

    for tiled, plain in zip(run(tile), run(None), strict=True):
        torch.testing.assert_close(tiled, plain, rtol=1e-5, atol=1e-5)


def test_no_more_than_a_tile_of_logits_is_alive() -> None:
    seen: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.ndim == 2 and out.shape[1] == 997:
                seen.append(out.shape[0])
            return out

    hidden = torch.randn(50, 4, requires_grad=True)
    head = torch.randn(997, 4, requires_grad=True)
    with Watch():
        logp, _ = token_logprobs(hidden, head, torch.zeros(50, dtype=torch.long), tile_tokens=8)
        logp.sum().backward()
    assert seen
    assert max(seen) == 8
