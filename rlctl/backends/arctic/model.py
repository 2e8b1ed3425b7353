"""What the model's own files tell here, since the platform tells nothing of it: sizes, FLOPs, limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlctl.backends.arctic.installed import Release
from rlctl.backends.arctic.settings import ArcticSettings
from rlctl.errors import ModelError
from rlctl.modelpath import locate
from rlctl.perf import ModelShape, datasheet_peak, model_shape
from rlctl.tokenizer import model_json
from rlctl.types import BackendInfo, JobSpec, Prompt

_SHARES_PROMPTS = ("qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe", "qwen3_next")
"""Model types that the platform's zorro has code for, in the releases that were read."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about the model of a job."""

    model_type: str
    """As its config.json has it."""
    shape: ModelShape | None
    vocab_size: int
    num_parameters: int
    max_context: int | None

    def info(self, settings: ArcticSettings, release: Release) -> BackendInfo:
        """What a run is told of the backend."""
        gpus = settings.training_gpus + (0 if settings.colocate else settings.sampling_gpus)
        peak, source = None, "the platform does not say which GPUs it has; set remote_backend.arctic.gpu"
        if settings.gpu is not None:
            peak, source = datasheet_peak(settings.gpu), f"data sheet of {settings.gpu}, dense bfloat16"
        return BackendInfo(
            device=f"arctic_platform {release.version}, {settings.gpu or 'GPUs not named'}",
            num_devices=gpus,
            dtype="bfloat16",
            peak_flops=peak,
            peak_source=source,
            vocab_size=self.vocab_size,
            num_parameters=self.num_parameters,
            max_context=self.max_context,
        )

    def told_of_zorro(self, settings: ArcticSettings) -> str | None:
        """What is to be said of shared prompts; a later release may have them for further models."""
        if not settings.zorro_train or self.model_type in _SHARES_PROMPTS:
            return None
        known = ", ".join(_SHARES_PROMPTS)
        return (
            f"remote_backend.arctic.zorro_train = true: the model is of type {self.model_type!r}; the platform is "
            f"known to share prompts for {known}"
        )

    def must_know_ids(self, prompts: Sequence[Prompt]) -> None:
        """Raises ModelError when a prompt holds a token that the model has no embedding for."""
        largest = max((int(prompt.token_ids.max()) for prompt in prompts if len(prompt.token_ids)), default=0)
        if largest >= self.vocab_size:
            raise ModelError(
                f"a prompt holds token {largest}, the model knows {self.vocab_size} tokens.",
                hint="the tokenizer is not this model's: look at model.tokenizer.",
            )


def read_facts(job: JobSpec) -> ModelFacts:
    """Raises ModelError for a model that the platform cannot load, or whose config cannot be read."""
    files = locate(job.model)
    if files.gguf_file is not None:
        raise ModelError(
            f"model.path = {job.model} is a GGUF file, which the platform's engines cannot train.",
            hint="give a folder or hub id with safetensors.",
        )
    config = model_json(job.model, "config.json")
    vocab = config.get("vocab_size")
    if not isinstance(vocab, int):
        raise ModelError(f"config.json of {job.model} names no vocab_size.")
    context = config.get("max_position_embeddings")
    longest = job.max_prompt_length + job.max_response_length
    if isinstance(context, int) and longest > context:
        raise ModelError(f"prompt and response make {longest} tokens; the context of {job.model} is {context}.")
    return ModelFacts(
        model_type=str(config.get("model_type")),
        shape=model_shape(config),
        vocab_size=vocab,
        num_parameters=_num_parameters(files.location),
        max_context=context if isinstance(context, int) else None,
    )


def _num_parameters(location: str) -> int:
    """Parameters of the model that its config describes, tied ones once; nothing is allocated."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(location)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in model.parameters())
