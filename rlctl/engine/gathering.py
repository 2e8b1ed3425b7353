"""Rows of a tensor by number, some more than once, with a gradient that is the same in every run.

A row that was taken several times gets the sum of several gradients. On a CPU the gradient of `x[index]` adds them
with as many threads as there are, in whatever order these come along: `index_select` adds one after the other, and is
faster. On CUDA it is the other way round: there `x[index]` sorts before it adds, and `index_select` adds atomically.
"""

from __future__ import annotations

from torch import Tensor


def gather(x: Tensor, index: Tensor) -> Tensor:
    """x[index] over the first dimension, for an index of any shape."""
    if x.is_cuda:
        return x[index]
    return x.index_select(0, index.flatten()).view(*index.shape, *x.shape[1:])
