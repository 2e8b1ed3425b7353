"""Load a causal language model from Hugging Face files and prove that the engine computes it exactly.

The transformers module is used as it is; only its attention function is ours. Since some families do
more than the engine knows (soft-capped logits, scaled heads, attention sinks), a loaded model is checked:
a small shared-prefix batch must give the log-probs of a plain transformers forward, or it is refused.

Letters: S packed tokens, T completion tokens, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlctl.engine import decode_step, packed_layers
from rlctl.engine.attention import SHARED_PREFIX, PackedLayout, during, of, shared_prefix_attention
from rlctl.engine.gathering import gather
from rlctl.engine.llama import LlamaDecoder, recognise
from rlctl.engine.logprobs import Head, token_logprobs
from rlctl.engine.packing import PackedBatch, pack
from rlctl.errors import ModelError
from rlctl.modelpath import ModelFiles, load_errors, locate
from rlctl.perf import ModelShape, model_shape
from rlctl.types import TrainRow

EXACT = 1e-3
"""Largest difference of a log-prob in the check at load: in float32, rounding makes about 1e-5."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal LM split into what gives hidden states and what turns them into logits."""

    causal_lm: torch.nn.Module
    decoder: Callable[..., Any]
    head_weight: torch.nn.Parameter
    head_bias: torch.nn.Parameter | None
    shape: ModelShape | None
    shape_note: str
    max_context: int | None
    llama: LlamaDecoder | None = None
    """The decoder's parts, where the engine computes them in fewer operations and was seen to agree."""

    @property
    def device(self) -> torch.device:
        return self.head_weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head_weight.dtype

    @property
    def vocab_size(self) -> int:
        return self.head_weight.shape[0]

    def hidden(self, ids: Tensor, positions: Tensor, shared_prefix: Tensor) -> Tensor:
        """Hidden states after the last norm: [B, S] ids at [B, S] positions -> [B, S, D].

        `shared_prefix` is the handle of `attention.during`.
        """
        layout = of(shared_prefix)
        if self.llama is not None and isinstance(layout, PackedLayout):
            return packed_layers.hidden(self.llama, ids[0], positions[0], layout)[None]
        out = self.decoder(input_ids=ids, position_ids=positions, use_cache=False, shared_prefix=shared_prefix)
        hidden: Tensor = out.last_hidden_state
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]"""
        return torch.nn.functional.linear(hidden, self.head_weight, self.head_bias)

    def head(self, *, temperature: float, tile_tokens: int | None) -> Head:
        return Head(self.head_weight, self.head_bias, temperature, tile_tokens)

    @contextmanager
    def packed_hidden(self, batch: PackedBatch) -> Iterator[tuple[Tensor, Tensor]]:
        """(hidden states [T, D] that predict the completion tokens of one micro-batch, those tokens [T]).

        Differentiable inside the context.
        """
        ids, positions = (torch.from_numpy(x).to(self.device)[None] for x in (batch.ids_S, batch.positions_S))
        predictors_T, targets_T = (torch.from_numpy(x).to(self.device) for x in (batch.predictors_T, batch.targets_T))
        with during(PackedLayout(batch, device=self.device)) as handle:
            yield gather(self.hidden(ids, positions, handle)[0], predictors_T), targets_T


def load_policy(path: str, *, device: torch.device) -> Policy:
    """The model at `path` in float32 on the device, in eval mode, checked. Raises ModelError."""
    register_attention()
    causal_lm = _from_pretrained(locate(path), path)
    _must_be_trainable(causal_lm, path)
    policy = wrap(causal_lm.to(device))
    check_exact(policy, path)
    return policy


def register_attention() -> None:
    """Make the attention function known to transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(SHARED_PREFIX, shared_prefix_attention)


def _from_pretrained(files: ModelFiles, path: str) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    try:
        loaded, report = AutoModelForCausalLM.from_pretrained(
            files.location,
            dtype=torch.float32,
            attn_implementation=SHARED_PREFIX,
            output_loading_info=True,
            **files.arguments(),
            **(_dequantized() if files.gguf_file else {}),
        )
    except load_errors() as error:
        first_line = str(error).strip().split("\n")[0]
        raise ModelError(f"model.path = {path} cannot be loaded: {type(error).__name__}: {first_line}") from error
    missing = sorted(report.get("missing_keys") or ())
    if missing:
        shown = ", ".join(missing[:3])
        raise ModelError(
            f"model.path = {path}: {len(missing)} weights are not in its files ({shown}, ...).",
            hint="the files may be incomplete.",
        )
    _forget_quantization(loaded)
    module: torch.nn.Module = loaded
    return module.eval()


def _dequantized() -> dict[str, Any]:
    """Ask for float weights of a GGUF file, in the versions of transformers that could also keep its blocks."""
    import transformers

    config = getattr(transformers, "GgufConfig", None)
    return {"quantization_config": config(dequantize=True)} if config else {}


def _forget_quantization(loaded: Any) -> None:
    """Float weights that came from a quantized file are plain weights, and can be saved as such."""
    if all(p.dtype == torch.float32 for p in loaded.parameters()) and getattr(loaded, "hf_quantizer", None):
        loaded.hf_quantizer = None
        for attribute in ("quantization_config", "_pre_quantization_dtype"):
            if hasattr(loaded.config, attribute):
                delattr(loaded.config, attribute)


def _must_be_trainable(causal_lm: torch.nn.Module, path: str) -> None:
    for name, parameter in causal_lm.named_parameters():
        if parameter.dtype != torch.float32:
            raise ModelError(
                f"model.path = {path}: the weight {name} is {parameter.dtype}; a quantized model cannot be trained.",
                hint="take the same model in bfloat16 or float16.",
            )
        if not bool(torch.isfinite(parameter).all()):
            raise ModelError(
                f"model.path = {path}: the weight {name} is not finite.", hint="was it saved after a diverged run?"
            )


def wrap(causal_lm: Any) -> Policy:
    """A transformers causal LM, whose attention is SHARED_PREFIX, as a Policy."""
    head = causal_lm.get_output_embeddings()
    config = causal_lm.config.get_text_config()
    shape, note = _checked_shape(causal_lm, config)
    policy = Policy(
        causal_lm=causal_lm,
        decoder=causal_lm.base_model,
        head_weight=head.weight,
        head_bias=getattr(head, "bias", None),
        shape=shape,
        shape_note=note,
        max_context=getattr(config, "max_position_embeddings", None),
    )
    fewer = decode_step.checked(recognise(causal_lm), policy.hidden, vocab_size=policy.vocab_size)
    return replace(policy, llama=fewer)


def _checked_shape(causal_lm: Any, config: Any) -> tuple[ModelShape | None, str]:
    """The shape by formula, if it agrees with the weights that are really there."""
    shape = model_shape(config.to_dict())
    if shape is None:
        return None, f"no FLOP formula for the family {config.model_type}"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return None, "attention pairs under a sliding window are not counted"
    linears = {name: m.weight for name, m in causal_lm.base_model.named_modules() if isinstance(m, torch.nn.Linear)}
    adapters = sum(weight.numel() for name, weight in linears.items() if ".lora_" in name)
    counted = sum(weight.numel() for weight in linears.values()) - adapters
    if counted != shape.body_parameters:
        return None, f"the formula gives {shape.body_parameters} weights, the model has {counted}"
    return replace(shape, adapter_parameters=adapters), ""


def check_exact(policy: Policy, path: str) -> None:
    """Compare the shared-prefix engine with a plain forward on a few tokens. Raises ModelError on any difference."""
    rows = _probe_rows(policy.vocab_size)
    ours = _engine_logprobs(policy, rows)
    plain = _plain_logprobs(policy, rows)
    worst = float((ours - plain).abs().max())
    if not worst <= EXACT:
        raise ModelError(
            f"model.path = {path}: the engine's log-probs differ from transformers' by {worst:.3g} nats, "
            f"so {type(policy.causal_lm).__name__} does more than the engine computes.",
            hint="use a model of the Llama, Qwen2, Qwen3 or SmolLM families, or another backend.",
        )


def _probe_rows(vocab_size: int) -> list[TrainRow]:
    draw = np.random.default_rng(0)

    def ids(length: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        return draw.integers(0, vocab_size, length, dtype=np.int32)

    short, long = ids(3), ids(6)
    completions = [(short, ids(4)), (short, ids(1)), (long, ids(5))]
    return [TrainRow(prompt, own, 0.0, np.zeros(len(own), np.float32)) for prompt, own in completions]


@torch.no_grad()
def _engine_logprobs(policy: Policy, rows: list[TrainRow]) -> Tensor:
    (batch,) = pack(rows, max_tokens=10_000)
    with policy.packed_hidden(batch) as (hidden_TD, targets_T):
        logprobs_T = token_logprobs(hidden_TD, policy.head(temperature=1.0, tile_tokens=4), targets_T)
    by_row = [logprobs_T[torch.from_numpy(batch.row_of_token_T == i).to(policy.device)] for i in range(len(rows))]
    return torch.cat([by_row[batch.rows.index(i)] for i in range(len(rows))])


@torch.no_grad()
def _plain_logprobs(policy: Policy, rows: list[TrainRow]) -> Tensor:
    causal_lm: Any = policy.causal_lm
    causal_lm.set_attn_implementation("eager")
    try:
        parts = []
        for row in rows:
            ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.completion_ids]).astype(np.int64)).to(
                policy.device
            )
            logp = causal_lm(input_ids=ids[None], use_cache=False).logits[0].float().log_softmax(-1)
            start = len(row.prompt_ids)
            parts.append(logp[start - 1 : -1].gather(1, ids[start:, None])[:, 0])
        return torch.cat(parts)
    finally:
        causal_lm.set_attn_implementation(SHARED_PREFIX)
