"""The same update gives the same gradient, bit for bit, however busy the machine is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlctl.engine import update
from rlctl.engine.gathering import gather
from rlctl.engine.model import wrap
from tests import defaults
from tests.engine.test_exactness import FAMILIES, family, some_rows


class RacingSums(TorchDispatchMode):
    """The operations that add several terms to one number with several threads at once, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "index_put" in str(function) and (kwargs.get("accumulate") or (len(args) > 3 and args[3])):
            places = torch.stack([x.flatten() for x in torch.broadcast_tensors(*_as_numbers(args[1]))])
            if places.unique(dim=1).shape[1] < places.shape[1]:
                self.found.append(f"{function} into {tuple(args[0].shape)}")
        return function(*args, **kwargs)


def _as_numbers(indices: Any) -> list[Tensor]:
    given = [x for x in indices if x is not None]
    return [n for x in given for n in (x.nonzero(as_tuple=True) if x.dtype == torch.bool else (x,))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FAMILIES)
def test_no_sum_of_an_update_depends_on_the_order_of_threads(shared: Path, name: str, dtype: torch.dtype) -> None:
    policy = wrap(family(shared, name).to(dtype))
    rows = some_rows(512, lengths=(4, 1, 6, 3, 9, 5, 1, 1))
    with RacingSums() as watch:
        update.forward_backward(
            policy, rows, loss=defaults.loss(), loss_denominator=8.0, compute=defaults.compute(max_tokens=200)
        )
    assert watch.found == []


def test_the_watch_sees_a_racing_sum() -> None:
    x = torch.ones(4, 3, requires_grad=True)
    with RacingSums() as watch:
        x[torch.tensor([1, 1, 2])].sum().backward()  # type: ignore[no-untyped-call]
    assert len(watch.found) == 1


def test_gathered_rows_add_their_gradients_up() -> None:
    x = torch.arange(12.0).view(4, 3).requires_grad_()
    index = torch.tensor([[1, 1], [3, 1]])
    out = gather(x, index)
    assert torch.equal(out, x[index])
    (out * torch.tensor([[1.0, 2.0], [4.0, 8.0]])[..., None]).sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(x.grad, torch.tensor([0.0, 11.0, 0.0, 4.0])[:, None].expand(4, 3))  # type: ignore[arg-type]
