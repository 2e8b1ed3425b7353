from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from rlctl.engine import kernels
from rlctl.engine.optimizer import MasterOptimizer
from rlctl.errors import BackendError
from tests import defaults

JOB = defaults.job(model="", weight_decay=0.0, betas=(0.9, 0.95), grad_clip=1.0)


def module_of(*values: float) -> nn.Module:
    module = nn.Module()
    module.w = nn.Parameter(torch.tensor(values))
    return module


def push(module: nn.Module, gradient: float) -> None:
    (module.w * gradient).sum().backward()


def test_small_updates_are_not_lost_in_bfloat16() -> None:
    # Field fault 151: 1,000 steps of -1e-6 on 1.0 leave a bfloat16 weight where it was.
    module = module_of(1.0)
    optimizer = MasterOptimizer(module, dtype=torch.bfloat16, job=JOB)
    for _ in range(1000):
        push(module, 1.0)
        optimizer.step(1e-6)
    assert module.w.dtype == torch.bfloat16
    assert optimizer.masters[0].item() == pytest.approx(0.999, abs=3e-5)  # 1,000 roundings of 3e-8 each


def test_gradients_are_summed_in_float32() -> None:
    # In bfloat16, 256 + 1 is 256.
    module = module_of(1.0)
    optimizer = MasterOptimizer(module, dtype=torch.bfloat16, job=JOB)
    for gradient in [256.0] + [1.0] * 8:
        push(module, gradient)
    assert optimizer.step(0.0).grad_norm == 264.0


def test_a_gradient_that_is_not_finite_is_not_stepped_and_is_forgotten() -> None:
    # Field fault 021.
    module = module_of(1.0, 2.0)
    optimizer = MasterOptimizer(module, dtype=torch.float32, job=JOB)
    push(module, float("nan"))
    stats = optimizer.step(0.1)
    assert not stats.stepped
    assert module.w.tolist() == [1.0, 2.0]
    assert optimizer.version == 0
    push(module, 1.0)
    assert optimizer.step(0.1).stepped


def test_the_gradient_is_clipped_by_its_norm() -> None:
    module = module_of(0.0, 0.0)
    sgd_like = MasterOptimizer(module, dtype=torch.float32, job=defaults.job(model="", grad_clip=0.5))
    push(module, 30.0)
    assert sgd_like.step(0.0).grad_norm == pytest.approx(30 * 2**0.5)
    moment = sgd_like.adamw.state[sgd_like.masters[0]]["exp_avg"]
    assert (moment / (1 - 0.9)).norm().item() == pytest.approx(0.5, rel=1e-4)


def test_changed_fraction_counts_compute_weights() -> None:
    module = module_of(1.0, 1e-6)
    optimizer = MasterOptimizer(module, dtype=torch.bfloat16, job=JOB)
    push(module, 1.0)
    assert optimizer.step(1e-6).changed_fraction == 0.5


def test_state_comes_back_in_its_own_dtype() -> None:
    # Field fault 129: moments must not become bfloat16.
    module, other = module_of(1.0, 2.0), module_of(5.0, 5.0)
    optimizer, again = (MasterOptimizer(m, dtype=torch.bfloat16, job=JOB) for m in (module, other))
    push(module, 1.0)
    optimizer.step(1e-3)
    again.restore(*copy.deepcopy((optimizer.master_state(), optimizer.state())))
    for m, o in ((module, optimizer), (other, again)):
        push(m, 0.5)
        o.step(1e-3)
    assert torch.equal(module.w, other.w)
    assert torch.equal(optimizer.masters[0], again.masters[0])
    assert again.adamw.state[again.masters[0]]["exp_avg"].dtype == torch.float32


def test_decay_and_betas_are_those_of_the_job() -> None:
    # Two steps of AdamW by hand: m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, both corrected for their start.
    b1, b2, decay, lr = 0.8, 0.6, 0.25, 0.1
    module = module_of(2.0)
    job = defaults.job(weight_decay=decay, betas=(b1, b2), grad_clip=100.0)
    optimizer = MasterOptimizer(module, dtype=torch.float32, job=job)
    w, m, v = 2.0, 0.0, 0.0
    for step, gradient in ((1, 3.0), (2, -1.0)):
        push(module, gradient)
        optimizer.step(lr)
        m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
        w = w * (1 - lr * decay) - lr * (m / (1 - b1**step)) / ((v / (1 - b2**step)) ** 0.5 + 1e-8)
    assert module.w.item() == pytest.approx(w, rel=1e-5)


def test_an_update_that_makes_a_weight_infinite_is_an_error() -> None:
    module = module_of(1.0)
    optimizer = MasterOptimizer(module, dtype=torch.float32, job=JOB)
    push(module, 1.0)
    with pytest.raises(BackendError, match="made the weight w infinite"):
        optimizer.step(1e308)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_steps_as_torch_does(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    job = defaults.job(model="", weight_decay=0.1, betas=(0.9, 0.999), grad_clip=0.5)
    torch.manual_seed(0)
    start, gradients = torch.randn(70_001), torch.randn(5, 70_001)
    steps = {}
    for with_kernel in (True, False):
        if not with_kernel:
            monkeypatch.setattr(kernels, "adamw", lambda _: None)
        module = module_of(*start.tolist())
        optimizer = MasterOptimizer(module, dtype=dtype, job=job)
        assert (optimizer._kernel is not None) == with_kernel
        stats = []
        for gradient in gradients:
            (module.w.float() * gradient).sum().backward()
            stats.append(optimizer.step(1e-2))
        steps[with_kernel] = optimizer, module.w.detach(), stats
    (ours, weight, told), (theirs, expected, told_by_torch) = steps[True], steps[False]
    torch.testing.assert_close(ours.masters[0], theirs.masters[0], rtol=1e-6, atol=1e-7)
    for key in ("exp_avg", "exp_avg_sq", "step"):
        saved, of_torch = (x.state()["adamw"]["state"][0][key] for x in (ours, theirs))
        torch.testing.assert_close(saved, of_torch, rtol=1e-5, atol=1e-9)
    # In bfloat16, a master on the border between two roundings may fall to either side.
    assert (weight != expected).sum() <= (20 if dtype == torch.bfloat16 else weight.numel())
    torch.testing.assert_close(weight, expected)
    assert [s.grad_norm for s in told] == [s.grad_norm for s in told_by_torch]
    assert all(abs(a.changed_fraction - b.changed_fraction) < 1e-3 for a, b in zip(told, told_by_torch, strict=True))
    assert not ours.masters[0].grad.any()  # type: ignore[union-attr]
