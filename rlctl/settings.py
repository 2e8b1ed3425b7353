"""Chapter 3: every setting of a run, with its default, its meaning and the rules between them.

This is the one place where a default lives; the text under a field is its one documentation
(`rlctl config schema` prints it). How presets, files, RLCTL_ variables and options become one
Settings is `config.py`. Settings are frozen, and unknown keys are refused everywhere.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from rlctl.backends.local.settings import LocalSettings
from rlctl.types import JobSpec, KlEstimator, LoraSpec, LossAggMode, LossSpec, Sampling

Count = Annotated[int, Field(gt=0, lt=2**31)]


class Block(BaseModel):
    """One table of settings: frozen, nothing unknown, no number that is not finite."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, protected_namespaces=()
    )

    @field_validator("*", mode="before")
    @classmethod
    def a_number_is_not_a_boolean(cls, value: Any, info: ValidationInfo) -> Any:
        # pydantic takes true for 1: `steps = true` would be one step.
        if isinstance(value, bool) and _is_numeric(cls.model_fields[info.field_name or ""].annotation):
            raise ValueError("must be a number, not a boolean")
        return value


def _is_numeric(annotation: Any) -> bool:
    return annotation in (int, float) or any(_is_numeric(part) for part in get_args(annotation))


def _either(numbers: set[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))


class LoraSettings(Block):
    rank: NonNegativeInt = 0
    """Rank of the trained factors; 0 trains all weights. Needs `rlctl[lora]`."""
    alpha: PositiveFloat = 32.0
    """The factors' product is scaled by alpha / rank."""
    target_modules: tuple[str, ...] = ("all-linear",)
    """Names of the linear layers that get factors (q_proj, ...); all-linear is every one inside the layers."""


class ModelSettings(Block):
    path: str = "Qwen/Qwen3-1.7B"
    """Model to train: a hub id, a folder, a .gguf file, `pkg:PACKAGE/FILE` inside an installed package, or
    `embedded:tiny`, which ships with rlctl. Of several, separated by `|`, the first that is here is taken."""
    tokenizer: str | None = None
    """Hub id or folder of the tokenizer; null takes the model's own."""
    chat_template: str | None = None
    """File with a Jinja chat template, for a model that has none or whose own should be replaced."""
    lora: LoraSettings = LoraSettings()
    """Train low-rank factors instead of the weights."""


class DataSettings(Block):
    source: str = "openai/gsm8k"
    """Hub id of a data set, or `generated:word-problems`; ignored when `path` is set."""
    path: str | None = None
    """File with the training problems (.jsonl, .parquet, .csv)."""
    eval_path: str | None = None
    """File with the evaluation problems; null holds out `eval_size` of the training file."""
    subset: str | None = "main"
    """Configuration of the hub data set."""
    train_split: str = "train"
    """Split of the hub data set to train on."""
    eval_split: str = "test"
    """Split of the hub data set to evaluate on."""
    question_key: str = "question"
    """Column that holds the question."""
    answer_key: str = "answer"
    """Column that holds the gold answer."""
    id_key: str | None = None
    """Column that names each problem; null numbers them by their line."""
    eval_size: Count = 256
    """Problems in one evaluation, at most; held out of `path` when there is no `eval_path`."""
    num_generated: Count = 100_000
    """Size of a generated training set, in problems."""
    max_prompt_length: Count = 1024
    """Longest prompt in tokens, chat template included; longer ones are left out and counted."""
    prompt_format: Literal["chat", "text"] = "chat"
    """`chat` renders the model's chat template; `text` sends the question as plain text."""
    system_prompt: str | None = None
    """System message before the question; null sends none. Only with `prompt_format = "chat"`."""
    prompt_suffix: str = ""
    """Text after the question, separated by one space."""
    shuffle: bool = True
    """New order each epoch, a pure function of (seed, epoch); false keeps the file's order."""

    @model_validator(mode="after")
    def system_prompt_needs_chat_format(self) -> DataSettings:
        if self.system_prompt is not None and self.prompt_format == "text":
            raise ValueError('data.system_prompt needs data.prompt_format = "chat"; plain text has no roles')
        return self


class RolloutSettings(Block):
    n: int = Field(8, ge=2, lt=2**16)
    """Group size: completions sampled for each prompt. One has no siblings to be compared with, so 2 is the least."""
    temperature: float = Field(1.0, ge=0.01, le=100)
    """Sampling temperature; log-probs in training are taken at it too."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; below 1 it biases the importance ratio and needs `allow_biased_sampling`."""
    top_k: int = -1
    """Sample among the k likeliest tokens; -1 is off. Needs `allow_biased_sampling`."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Leave out tokens less likely than this share of the likeliest. Needs `allow_biased_sampling`."""
    max_response_length: Count = 1024
    """Longest completion in tokens; a longer one is cut and counted as truncated."""
    allow_biased_sampling: bool = False
    """Accept top_p, top_k or min_p in training, though the ratio then compares two different policies."""

    @field_validator("top_k")
    @classmethod
    def top_k_is_positive_or_off(cls, value: int) -> int:
        if value == 0 or value < -1:
            raise ValueError("must be -1 (off) or at least 1")
        return value

    @model_validator(mode="after")
    def biased_sampling_needs_opt_in(self) -> RolloutSettings:
        filtered = self.top_p < 1 or self.top_k != -1 or self.min_p > 0
        if filtered and not self.allow_biased_sampling:
            raise ValueError(
                "rollout.top_p, rollout.top_k and rollout.min_p bias the importance ratio in training; leave them at "
                "1.0, -1 and 0.0, "
                "or set rollout.allow_biased_sampling = true"
            )
        return self

    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.top_k, self.min_p, self.max_response_length)


class Gsm8kRewardSettings(Block):
    allow_last_number: bool = False
    """Accept the last number of a completion that has neither `#### N` nor a box."""


class RewardSettings(Block):
    functions: list[str] = Field(["gsm8k"], min_length=1)
    """Rewards by name (`gsm8k`) or as `package.module:function`; the first one's value is the score shown."""
    weights: list[float] | None = None
    """One weight a function; null weighs each 1."""
    timeout_s: PositiveFloat = 10.0
    """Seconds one call of a custom reward may take; a completion whose reward times out is left out and counted."""
    gsm8k: Gsm8kRewardSettings = Gsm8kRewardSettings()

    @model_validator(mode="after")
    def one_weight_a_function(self) -> RewardSettings:
        if self.weights is not None and len(self.weights) != len(self.functions):
            raise ValueError(
                f"reward.weights has {len(self.weights)} values for the {len(self.functions)} of reward.functions; "
                "give one for each"
            )
        if len(set(self.functions)) != len(self.functions):
            raise ValueError("reward.functions names one twice; give it once with the sum of the weights")
        return self


class AlgorithmSettings(Block):
    norm_adv_by_std: bool = True
    """Divide advantages by the group's sample standard deviation (n-1, plus 1e-6); false only centres (Dr. GRPO)."""
    clip_ratio_low: float = Field(0.2, ge=0, lt=1)
    """How far below 1 the importance ratio may go before its gradient is cut."""
    clip_ratio_high: float = Field(0.2, ge=0)
    """How far above 1 the importance ratio may go before its gradient is cut."""
    clip_ratio_c: float | None = Field(3.0, gt=1)
    """Dual clip: bound on ratio x |advantage| where the advantage is negative; null is off."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of the KL term against the starting policy; 0 loads no reference model."""
    kl_estimator: KlEstimator = "k3"
    """k1 = log-ratio, k2 = half its square, k3 = exp(-log-ratio) - 1 + log-ratio; each differentiated as it stands."""
    entropy_coeff: float = Field(0.0, ge=0)
    """Weight of the entropy bonus, per token in nats."""
    loss_agg_mode: LossAggMode = "token-mean"
    """How token losses become one number; seq-mean-token-sum-norm divides by rollout.max_response_length (Dr. GRPO)."""
    drop_zero_signal_groups: bool = True
    """Leave groups whose rewards are all equal out of the update, numerator and denominator; they are counted."""


class TrainerSettings(Block):
    train_batch_size: Count = 32
    """Prompts a step; each is sampled rollout.n times."""
    mini_batch_size: Count | None = None
    """Prompts an optimizer update; null is train_batch_size, which it must divide."""
    ppo_epochs: Count = 1
    """Passes over a step's samples."""
    steps: Count | None = None
    """Steps of the run; null follows from `epochs`."""
    epochs: Count = 1
    """Passes over the data, when `steps` is null; otherwise ignored."""
    max_tokens_per_device: Count = 16384
    """Token budget of one micro-batch, after each prompt is counted once. Changes memory and speed, not the result."""
    lr: PositiveFloat = 1e-6
    """Peak learning rate."""
    lr_schedule: Literal["constant", "cosine", "linear"] = "constant"
    """What follows the warm-up; cosine and linear end at 0 after the last step."""
    warmup_ratio: float = Field(0.0, ge=0, lt=1)
    """Share of all steps over which the learning rate rises; the first one is never 0."""
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled weight decay of AdamW."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of AdamW's two moments."""
    grad_clip: PositiveFloat = 1.0
    """Largest norm of the gradient; a larger one is scaled down."""
    old_log_probs: Literal["auto", "always"] = "auto"
    """When the trainer scores the samples before the first update: `auto` only if there are several updates a step."""
    max_skipped_updates: Count = 3
    """Updates in a row that may be skipped for a gradient that is not finite; then the run stops."""
    save_freq: int = Field(50, ge=0, lt=2**31)
    """Steps between checkpoints; one more is written at the end. 0 writes only that one."""
    eval_freq: int = Field(10, ge=0, lt=2**31)
    """Steps between evaluations; one more is made before the first step and after the last. 0 makes none at all."""

    @field_validator("betas")
    @classmethod
    def betas_lie_between_0_and_1(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in value):
            raise ValueError("both must be at least 0 and below 1")
        return value

    @model_validator(mode="after")
    def mini_batches_fill_the_batch(self) -> TrainerSettings:
        size, batch = self.mini_batch_size, self.train_batch_size
        if size is not None and batch % size:
            divisors = [d for d in range(1, batch + 1) if batch % d == 0]
            sizes = {max(d for d in divisors if d <= size), min((d for d in divisors if d > size), default=batch)}
            batches = {max(batch // size, 1) * size, (batch // size + 1) * size}
            raise ValueError(
                f"trainer.train_batch_size = {batch} is not a multiple of trainer.mini_batch_size = {size}; "
                f"nearest mini_batch_size: {_either(sizes)}; nearest train_batch_size: {_either(batches)}"
            )
        return self

    @property
    def updates_per_step(self) -> int:
        return self.ppo_epochs * (self.train_batch_size // (self.mini_batch_size or self.train_batch_size))


class EvalSettings(Block):
    temperature: float = Field(0.0, ge=0, le=100)
    """Sampling temperature of evaluations, 0.01 or more; 0 takes the likeliest token."""
    n: Count = 1
    """Completions for each evaluation problem."""

    @field_validator("temperature")
    @classmethod
    def temperature_is_zero_or_not_too_small(cls, value: float) -> float:
        if 0 < value < 0.01:
            raise ValueError("must be 0 (the likeliest token) or at least 0.01")
        return value


class RunSettings(Block):
    dir: str = "runs"
    """Folder that holds one folder a run."""
    name: str | None = None
    """Name of the run and its folder, letters, digits and `._-`; null makes one from the preset and the time."""
    samples_per_step: int = Field(4, ge=0)
    """Rollouts written to samples.jsonl each step."""

    @field_validator("name")
    @classmethod
    def name_is_a_plain_file_name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
            raise ValueError("must be at most 100 letters, digits and . _ - and begin with a letter or digit")
        return value


class Settings(BaseSettings):
    """All settings of a run."""

    model_config = SettingsConfigDict(
        env_prefix="RLCTL_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    backend: str = "local"
    """Where the work is done: local, or the name of a registered backend (`rlctl plugins` lists them)."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Decides the order of the data and every random draw."""
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    trainer: TrainerSettings = TrainerSettings()
    eval: EvalSettings = EvalSettings()
    run: RunSettings = RunSettings()
    local: LocalSettings = LocalSettings()
    remote_backend: dict[str, Any] = {}
    """One table for each backend outside this process, typed by that backend's own settings class."""

    @field_validator("remote_backend")
    @classmethod
    def blocks_are_typed_by_their_backend(cls, blocks: dict[str, Any]) -> dict[str, Any]:
        # Imported here: a plugin's settings module may import this one.
        from rlctl.backends import registry

        typed = {}
        for name, block in blocks.items():
            settings_class = registry.get(name).load("settings")
            typed[name] = block if isinstance(block, settings_class) else settings_class.model_validate(block)
        return typed

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `config.py` hands over: it reads the environment itself, to refuse what it does not know."""
        return (init_settings,)

    def job(self, *, model: str, end_token_ids: tuple[int, ...]) -> JobSpec:
        """What every backend is told, whichever it is; `model` is the one of model.path that was found."""
        lora = self.model.lora
        return JobSpec(
            model=model,
            end_token_ids=end_token_ids,
            temperature=self.rollout.temperature,
            needs_reference=self.algorithm.kl_coef > 0,
            max_tokens_per_device=self.trainer.max_tokens_per_device,
            max_prompt_length=self.data.max_prompt_length,
            max_response_length=self.rollout.max_response_length,
            weight_decay=self.trainer.weight_decay,
            betas=self.trainer.betas,
            grad_clip=self.trainer.grad_clip,
            lora=LoraSpec(lora.rank, lora.alpha, lora.target_modules) if lora.rank else None,
        )

    def loss(self) -> LossSpec:
        algorithm = self.algorithm
        return LossSpec(
            clip_ratio_low=algorithm.clip_ratio_low,
            clip_ratio_high=algorithm.clip_ratio_high,
            clip_ratio_c=algorithm.clip_ratio_c,
            kl_coef=algorithm.kl_coef,
            kl_estimator=algorithm.kl_estimator,
            entropy_coeff=algorithm.entropy_coeff,
            loss_agg_mode=algorithm.loss_agg_mode,
            max_response_length=self.rollout.max_response_length,
        )

    def evaluation(self) -> Sampling:
        """Sampling of an evaluation: from the full distribution, whatever filters training was allowed."""
        return Sampling(self.eval.temperature, 1.0, -1, 0.0, self.rollout.max_response_length)
