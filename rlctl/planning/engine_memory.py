"""What the engine allocates, as pure functions in bytes: the activations of an update, one tile of logits, the sampler.

Each formula names the code that allocates it. Letters: S packed tokens, T of them predicted, L layers, D hidden width,
H query heads, K key heads, W width of a head, F width of the MLP, V vocabulary, b bytes of a number of the compute
dtype (4 of float32, 2 of bfloat16).
"""

from __future__ import annotations

from dataclasses import dataclass

from rlctl.planning.memory import Role
from rlctl.planning.model import ModelFacts
from rlctl.types import LoraSpec

FLOAT32 = 4
ITEM_BYTES = {"float32": 4, "bfloat16": 2}

MASTER_BYTES = 4
GRADIENT_BYTES = 4
MOMENTS_BYTES = 8
"""A trained parameter's float32 master, gradient sum, and AdamW's two moments: `engine/optimizer.py`."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How the engine computes a model."""

    model: ModelFacts
    item_bytes: int
    packed_layers: bool
    """Whether layers are taken apart (`engine/packed_layers.py`), as on a CPU; else they go through autograd."""
    checkpointing: bool
    logits_tile: int | None
    """Tokens in a tile of logits; None keeps all of them."""
    flash: bool = True
    """Whether flash attention computes it; what masked attention keeps is not known."""
    lora: LoraSpec | None = None
    """With LoRA no gradient of the model's own weights is computed."""

    @property
    def trains_all(self) -> bool:
        return self.lora is None

    @property
    def unknown(self) -> str:
        """Why what a layer keeps is not known; "" where it is."""
        if not self.model.llama_shaped:
            return f"what a layer of the family {self.model.family} keeps is not known"
        return (
            "" if self.flash else "what attention keeps without flash attention, as of float32 on a GPU, is not known"
        )


def flashes(model: ModelFacts, *, on_gpu: bool, item_bytes: int) -> bool:
    """Whether flash attention takes the model's heads there: `flash.supported`."""
    return not on_gpu or (item_bytes == 2 and model.head_width % 8 == 0 and model.head_width <= 256)


def kept_per_token(engine: Engine) -> int:
    """Bytes that the backward pass needs of a token in one layer.

    Taken apart, x, the joined product of q, k and v, attention's outcome with its log-sum-exp, x', and gate and up:
    `packed_layers._Kept`. Queries and keys with norms of their own are kept before and after them.
    Through autograd, a norm keeps its input in float32, normalised, and its outcome; attention q, k, v and the outcome;
    the MLP gate, silu(gate), up and their product: what transformers' modules save for backward, which
    `tests/planning/test_engine_memory.py` counts. A frozen norm does not keep its input normalised; LoRA's factors keep
    what lies between them, one rank a product.
    """
    m, b = engine.model, engine.item_bytes
    heads, keys = m.heads * m.head_width, m.kv_heads * m.head_width
    if engine.packed_layers:
        before_norms = heads + keys if m.head_norms else 0
        return b * (2 * m.hidden + 2 * heads + 2 * keys + before_norms * 2 + 2 * m.mlp) + FLOAT32 * m.heads
    normalised = b * engine.trains_all
    of_norms = 2 * m.hidden * (FLOAT32 + normalised + b)
    of_head_norms = (heads + keys) * (FLOAT32 + normalised) if m.head_norms else 0
    attention = b * (2 * heads + 2 * keys) + FLOAT32 * m.heads
    ranks = 0 if engine.lora is None else engine.lora.rank * sum(t[0] for t in m.targets(engine.lora)) // m.layers
    return of_norms + of_head_norms + attention + b * (4 * m.mlp + ranks)


def activations(engine: Engine, *, tokens: int, predicted: int) -> int:
    """Bytes kept between forward and backward: of every layer, the last norm's input and outcome, and of those the ones
    that predict. With checkpointing only each layer's input stays.
    """
    m, b = engine.model, engine.item_bytes
    of_layer = b * m.hidden if engine.checkpointing else kept_per_token(engine)
    return tokens * (m.layers * of_layer + 2 * b * m.hidden) + predicted * b * m.hidden


def layer_forward(engine: Engine, *, tokens: int) -> int:
    """Bytes of one layer while it is computed: what it would keep, its outcome, a norm's outcome, the gated product."""
    m, b = engine.model, engine.item_bytes
    return tokens * (kept_per_token(engine) + b * (2 * m.hidden + m.mlp))


def layer_backward(engine: Engine, *, tokens: int) -> int:
    """Bytes of one layer's way back, beside what was kept: `packed_layers._back`, or autograd.

    A token's gradients by gate, up and their product (3 F), by the hidden states between (4 D), by attention's parts
    (3 H W + 2 K W, keys and values once more in float32); and the layer's weight gradients with the widest of its
    joined weights. With checkpointing, what the layer keeps is there again.
    """
    m, b = engine.model, engine.item_bytes
    heads, keys = m.heads * m.head_width, m.kv_heads * m.head_width
    of_token = b * (3 * m.mlp + 4 * m.hidden + 3 * heads + 2 * keys) + FLOAT32 * (2 * keys + m.heads)
    weights = b * (m.layer_parameters + 2 * m.hidden * m.mlp) if engine.trains_all else 0
    again = kept_per_token(engine) if engine.checkpointing else 0
    return tokens * (of_token + again) + weights


def logits_tile(engine: Engine, *, predicted: int) -> int:
    """Bytes of one tile of logits, which becomes its own gradient: `logprobs.Head.memory`."""
    rows = min(engine.logits_tile or predicted, predicted)
    return rows * engine.model.vocab * engine.item_bytes


def head_gradient(engine: Engine, *, predicted: int) -> int:
    """Bytes beside the tile: a term of the head's gradient, V D, where it is trained, and that of the hidden states."""
    m, b = engine.model, engine.item_bytes
    return b * (m.head_parameters * engine.trains_all + predicted * m.hidden)


def update_transient(engine: Engine, *, tokens: int, predicted: int) -> int:
    """Bytes above activations and tile at the worst moment of an update: at the head, or in the last layer's way back.

    Then the tile is gone, so that only what exceeds it counts.
    """
    m, b = engine.model, engine.item_bytes
    back = layer_backward(engine, tokens=tokens) + b * m.hidden * (tokens + predicted)
    return max(head_gradient(engine, predicted=predicted), back - logits_tile(engine, predicted=predicted))


def score_transient(engine: Engine, *, tokens: int, predicted: int) -> int:
    """Bytes of a pass without gradients: one layer at a time, then the tile over all hidden states."""
    m, b = engine.model, engine.item_bytes
    at_head = logits_tile(engine, predicted=predicted) + b * m.hidden * (2 * tokens + predicted)
    return max(layer_forward(engine, tokens=tokens), at_head)


def update_roles(engine: Engine, *, tokens: int, predicted: int) -> list[Role]:
    """What a micro-batch of so many tokens holds while it is scored, and while it is trained on."""
    m = engine.model
    tile, rows = logits_tile(engine, predicted=predicted), min(engine.logits_tile or predicted, predicted)
    work = float(update_transient(engine, tokens=tokens, predicted=predicted))
    score = float(score_transient(engine, tokens=tokens, predicted=predicted))
    roles = [
        _kept(engine, tokens=tokens, predicted=predicted),
        Role(
            "logits tile", float(tile), ("update",), f"{rows:,} tokens x {m.vocab:,} words x {engine.item_bytes} bytes"
        ),
        Role("work of an update", work, ("update",), "gradients of one layer, or of the output head"),
        Role("work of scoring", score, ("score",), "activations of one layer, or a tile of logits"),
    ]
    return [_unknown(role, engine) if engine.unknown and "work" in role.name else role for role in roles]


def _kept(engine: Engine, *, tokens: int, predicted: int) -> Role:
    m = engine.model
    if engine.unknown:
        return _unknown(Role("activations", None, ("update",), ""), engine)
    of_layer = engine.item_bytes * m.hidden if engine.checkpointing else kept_per_token(engine)
    kept = activations(engine, tokens=tokens, predicted=predicted)
    formula = f"{tokens:,} tokens x {m.layers} layers x {of_layer:,} bytes, and at the head"
    return Role("activations", float(kept), ("update",), formula)


def _unknown(role: Role, engine: Engine) -> Role:
    return Role(role.name, None, role.phases, engine.unknown)


def prefill_transient(engine: Engine, *, tokens: int) -> int:
    """Bytes of a prefill pass: one layer, and keys and values of all layers until they are in the cache."""
    return layer_forward(engine, tokens=tokens) + tokens * engine.model.kv_numbers_per_token * engine.item_bytes


def sampled_logits(engine: Engine, *, rows: int) -> int:
    """Bytes of the logits of one decode step."""
    return rows * engine.model.vocab * engine.item_bytes
