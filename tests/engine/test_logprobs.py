from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rlctl.engine.logprobs import Head, loss_backward, token_logprobs


def head_of(weight: Tensor, bias: Tensor | None = None, *, temperature: float = 1.0, tile: int | None) -> Head:
    return Head(nn.Parameter(weight), None if bias is None else nn.Parameter(bias), temperature, tile)


@pytest.mark.parametrize("tile", [None, 1])
@pytest.mark.parametrize(
    ("temperature", "expected"), [(0.5, -0.142932), (0.6, -0.202573), (2.0, -0.680270), (1.0, -0.407606)]
)
def test_logits_are_divided_by_the_temperature(temperature: float, expected: float, tile: int | None) -> None:
    # Field fault 028. Hidden is a row of logits, the head the identity.
    head = head_of(torch.eye(3), temperature=temperature, tile=tile)
    logp = token_logprobs(torch.tensor([[2.0, 1.0, 0.0]]), head, torch.tensor([0]))
    assert logp.item() == pytest.approx(expected, abs=1e-6)


def test_bfloat16_weights_give_float32_logprobs_that_are_not_positive() -> None:
    # Field fault 030: a softmax in bfloat16 is off by percents and can exceed 0.
    torch.manual_seed(0)
    hidden, weight = torch.randn(64, 32).bfloat16(), torch.randn(5000, 32).bfloat16()
    targets = (hidden @ weight.T).argmax(-1)
    logp = token_logprobs(hidden, head_of(weight, tile=7), targets)
    reference = (hidden @ weight.T).float().log_softmax(-1).gather(1, targets[:, None])[:, 0]
    assert logp.dtype == torch.float32
    assert bool((logp <= 0).all())
    torch.testing.assert_close(logp.exp() / reference.exp(), torch.ones(64), atol=3e-6, rtol=0)


def tiled(hidden: Tensor, head: Head, targets: Tensor, to_logp: Tensor, to_entropy: Tensor | None) -> list[Tensor]:
    """Log-probs, entropy and gradients of a loss that weighs both, as the engine computes them."""

    def loss(tile: slice, logp: Tensor, entropy: Tensor) -> tuple[Tensor, None]:
        total = logp @ to_logp[tile]
        return total if to_entropy is None else total + entropy @ to_entropy[tile], None

    done = loss_backward(hidden, head, targets, loss)
    grads = [p.grad for p in (head.weight_VD, head.bias_V) if p is not None]
    return [done.logprobs_T, done.entropy_T, done.grad_hidden_TD, *grads]


def plain(hidden: Tensor, head: Head, targets: Tensor, to_logp: Tensor, to_entropy: Tensor | None) -> list[Tensor]:
    """The same by autograd on whole logits."""
    leaves = [x.detach().clone().requires_grad_() for x in (hidden, head.weight_VD, head.bias_V) if x is not None]
    logits = nn.functional.linear(leaves[0], leaves[1], leaves[2] if len(leaves) == 3 else None) / head.temperature
    all_logp = logits.log_softmax(-1)
    logp = all_logp.gather(1, targets[:, None])[:, 0]
    entropy = -(all_logp.exp() * all_logp).sum(-1)
    total = logp @ to_logp
    (total if to_entropy is None else total + entropy @ to_entropy).backward()
    return [logp.detach(), entropy.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 20),
    vocab=st.integers(2, 700),
    tile=st.one_of(st.none(), st.integers(1, 25)),
    temperature=st.sampled_from([1.0, 0.7, 1.3]),
    with_bias=st.booleans(),
    with_entropy=st.booleans(),
)
def test_tiled_values_and_gradients_equal_autograd_on_whole_logits(
    tokens: int, vocab: int, tile: int | None, temperature: float, with_bias: bool, with_entropy: bool
) -> None:
    draw = torch.Generator().manual_seed(tokens * vocab)
    hidden, weight = (torch.randn(size, 8, generator=draw) for size in (tokens, vocab))
    head = head_of(
        weight, torch.randn(vocab, generator=draw) if with_bias else None, temperature=temperature, tile=tile
    )
    targets = torch.randint(vocab, (tokens,), generator=draw)
    to_logp, to_entropy = (torch.randn(tokens, generator=draw) for _ in range(2))
    given_ = (hidden, head, targets, to_logp, to_entropy if with_entropy else None)
    for ours, expected in zip(tiled(*given_), plain(*given_), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_frozen_head_gets_no_gradient() -> None:
    head = head_of(torch.randn(9, 4), tile=2)
    head.weight_VD.requires_grad_(False)
    loss_backward(torch.randn(5, 4), head, torch.zeros(5, dtype=torch.long), lambda _, logp, __: (logp.sum(), None))
    assert head.weight_VD.grad is None


def test_impossible_words_have_no_gradient_and_no_entropy() -> None:
    hidden = torch.zeros(2, 3)
    bias = torch.tensor([0.0, 0.0, float("-inf")])
    head = head_of(torch.randn(3, 3), bias, tile=None)
    logp, entropy, *grads = tiled(hidden, head, torch.tensor([0, 1]), torch.ones(2), torch.ones(2))
    torch.testing.assert_close(logp, torch.full((2,), -0.693147))
    torch.testing.assert_close(entropy, torch.full((2,), 0.693147))
    assert all(bool(g.isfinite().all()) for g in grads)


class LogitsAlive(TorchDispatchMode):
    """The most rows of any [rows, vocabulary] tensor that an operation gave."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.vocab, self.most = vocab, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple) else (out,):
            if isinstance(tensor, Tensor) and tensor.ndim >= 2 and tensor.shape[-1] == self.vocab:
                self.most = max(self.most, tensor.numel() // self.vocab)
        return out


def test_no_more_than_a_tile_of_logits_is_alive() -> None:
    with LogitsAlive(997) as watch:
        head = head_of(torch.randn(997, 4), tile=8)
        targets = torch.zeros(50, dtype=torch.long)
        token_logprobs(torch.randn(50, 4), head, targets)
        loss_backward(torch.randn(50, 4), head, targets, lambda _, logp, entropy: (logp.sum() + entropy.sum(), None))
    assert watch.most == 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_plain_sum_is_a_loss_too(dtype: torch.dtype) -> None:
    # Its gradient is one number, expanded over the tokens.
    torch.manual_seed(0)
    hidden, weight = torch.randn(9, 16).to(dtype), torch.randn(300, 16).to(dtype)
    targets = torch.randint(300, (9,))
    head = head_of(weight, tile=4)
    found = loss_backward(hidden, head, targets, lambda _, logp, entropy: (logp.sum() + 0.1 * entropy.sum(), None))
    wide = hidden.float().requires_grad_()
    logp = (wide @ weight.float().T).log_softmax(-1)
    total = logp.gather(1, targets[:, None]).sum() - 0.1 * (logp.exp() * logp).sum()
    (expected,) = torch.autograd.grad(total, wide)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(found.grad_hidden_TD.float(), expected, atol=tolerance * 10, rtol=tolerance)


def test_a_target_of_no_probability_leaves_the_other_rows_a_gradient() -> None:
    weight = torch.eye(4)
    weight[1, 1] = float("-inf")
    hidden = torch.tensor([[0.5, 1.0, 0.2, 0.1], [0.5, 0.0, 0.2, 0.1]])
    head = Head(nn.Parameter(torch.nan_to_num(weight, neginf=-1e30)), None, 1.0, None)
    found = loss_backward(hidden, head, torch.tensor([1, 2]), lambda _, logp, __: ((logp * 1.0).sum(), None))
    assert torch.isfinite(found.grad_hidden_TD).all()
