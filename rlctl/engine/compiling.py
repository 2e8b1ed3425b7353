"""torch.compile of the decoder layers: element-wise work fused, Python out of the way.

One graph serves all layers of a model. Attention stays what it is, as an opaque operation (`attention.py`). On a CPU
only the update is compiled, and only of models that the engine has no kernels for (`packed_layers.py`): those are
faster. What it brings and costs is in docs/performance.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlctl.engine.model import Policy


def compile_layers(policy: Policy) -> None:
    """Compile every decoder layer of the policy; nothing happens before its first use."""
    import torch._dynamo.config as dynamo

    # A layer holds its own number: without this, every layer would be compiled anew.
    dynamo.allow_unspec_int_on_nn_module = True
    dynamo.recompile_limit = 32
    for layer in policy.causal_lm.base_model.layers:  # type: ignore[union-attr]
        compiled = torch.compile(layer.forward, dynamic=True, fullgraph=True)
        layer.forward = partial(_forward, layer.forward, compiled)


def _forward(eager: Any, compiled: Any, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
    chosen = compiled if torch.is_grad_enabled() or hidden.is_cuda else eager
    return chosen(hidden, *args, **kwargs)
