"""torch.compile of the decoder layers: element-wise work fused, Python out of the way.

One graph serves all layers of a model, for training, scoring, prefill and decoding each. Attention and prepacked
products stay what they are, as opaque operations (`attention.py`, `prepacked.py`). What it brings and costs is in
docs/performance.md.
"""

from __future__ import annotations

from typing import Any

import torch


def compile_layers(causal_lm: Any) -> None:
    """Compile every decoder layer of the model; nothing happens before its first use."""
    import torch._dynamo.config as dynamo

    # A layer holds its own number: without this, every layer would be compiled anew.
    dynamo.allow_unspec_int_on_nn_module = True
    dynamo.recompile_limit = 32
    for layer in causal_lm.base_model.layers:
        layer.forward = torch.compile(layer.forward, dynamic=True, fullgraph=True)
