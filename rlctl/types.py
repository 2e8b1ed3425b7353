"""What travels between the driver and a backend: frozen records, tokens as 1-D numpy arrays.

Ids are int32 and log-probs float32, 4 bytes a token, so that a batch crosses Ray's object store
without a copy and a wire cheaply. Nothing here imports torch or pydantic.
Sums and counts travel; means are taken once, by whoever prints them.

Lengths in comments: P problems, n samples a problem, R rows, C completion tokens of one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]
LogProbs = npt.NDArray[np.float32]
PolicyMask = npt.NDArray[np.bool_]
"""Which tokens of a completion the policy wrote; the others came from an environment."""
FinishReason = Literal["stop", "length"]
JudgedPhase = Literal["sampling", "update"]
"""What is timed beside reference work of its kind."""

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its gold answer, as the data set has them.

    `extra` is what a source keeps for the reward that grades its problems: a database, the whole row. Plain data.
    `messages` is the whole conversation to go on with, as (role, text), where a source gives one; its last is the
    question.
    """

    id: str
    question: str
    answer: str
    source: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)
    messages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sent to the sampler for one problem.

    `seed` is a function of (run seed, step, problem id) alone; sample i of the prompt draws from
    `sample_seed(seed, i)`, so its random numbers do not depend on what else is in the batch.
    """

    token_ids: TokenIds
    seed: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample; always sent whole, so that no model's generation_config can fill a gap.

    `temperature` 0 takes the likeliest token, `top_k` -1 is off. Filters apply in vLLM's order: temperature, min-p,
    top-k, top-p.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a completion beside the job's end tokens, as an environment's turns end."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled answer: ids (with the end token, if one was sampled) and their log-probs.

    Log-probs are nats under the sampling policy at the sampling temperature, over the full vocabulary; 0 for tokens
    that the policy did not write. `policy_mask` None means: it wrote all of them.
    """

    token_ids: TokenIds
    logprobs: LogProbs
    finish_reason: FinishReason
    policy_mask: PolicyMask | None = None

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"


EpisodeEnd = Literal["done", "length", "turns", "failed"]
"""Why an episode is over: environment or policy said so; out of tokens; out of turns; the environment failed."""


@dataclass(frozen=True, slots=True)
class Episode:
    """The turns of a completion that an environment answered. `parts` are who wrote what, in order: (writer, text)."""

    parts: tuple[tuple[Literal["policy", "environment"], str], ...]
    ending: EpisodeEnd
    num_turns: int
    """Turns of the policy."""
    tool_calls: int = 0
    tool_errors: int = 0
    observation_tokens: int = 0
    answers_cut: int = 0
    """Answers of the environment that were too long."""
    reward: float | None = None
    """What the environment gave, added up; None where it leaves that to rewards."""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A completion with what the rewards said of it; `reward` is None when a reward or the environment failed.

    `text` is what the policy wrote, turns on lines of their own where there are several.
    """

    problem: Problem
    prompt: Prompt
    completion: Completion
    text: str
    reward: float | None
    scores: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    failures: tuple[str, ...] = ()
    """The kind of each reward that failed: timeout, exception, crash, not_finite; an environment's failure too."""
    parts: tuple[tuple[float, float], ...] = ()
    """(weight, score) of each reward function, in order; their sum of products is `reward` before shaping."""
    length_parts: tuple[tuple[float, float], ...] = ()
    """(weight, value) of each penalty for length that `[reward]` asks for."""
    baseline: float | None = None
    """The reward of the likeliest completion of the same prompt, where the estimator wants one."""
    episode: Episode | None = None
    """None where no environment answers."""
    policy_version: int = 0
    """Steps that the policy which sampled it had been trained for."""

    @property
    def shaping(self) -> float:
        """What was added to the reward for length."""
        return sum(weight * value for weight, value in self.length_parts)


@dataclass(frozen=True, slots=True)
class TrainRow:
    """One completion to train on. Rows with equal prompts are computed with that prompt once.

    `old_logprobs` None means: take the current policy's own, detached (one update per batch).
    `policy_mask` None means: the policy wrote all of them.
    """

    prompt_ids: TokenIds
    completion_ids: TokenIds
    advantage: float
    rollout_logprobs: LogProbs
    old_logprobs: LogProbs | None = None
    ref_logprobs: LogProbs | None = None
    token_advantages: LogProbs | None = None
    """[C] advantages, where tokens have their own; only with `LossSpec.token_advantages`. `advantage` is then their
    mean, before what corrects the sampler's probabilities."""
    selected: npt.NDArray[np.bool_] | None = None
    """[C] tokens that clip_cov and kl_cov treat apart."""
    policy_mask: PolicyMask | None = None
    """[C] tokens that the policy wrote; the others are seen by those behind them, and not trained on."""
    policy_version: int = 0
    """Steps that the policy which sampled it had been trained for."""

    @property
    def advantages(self) -> LogProbs:
        """[C] of every token."""
        if self.token_advantages is not None:
            return self.token_advantages
        return np.full(len(self.completion_ids), self.advantage, dtype=np.float32)

    @property
    def trained_tokens(self) -> int:
        """How many tokens the loss counts: those that the policy wrote."""
        return len(self.completion_ids) if self.policy_mask is None else int(self.policy_mask.sum())

    def written(self, values: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
        """Those of the tokens that the policy wrote: [C] -> [trained_tokens]."""
        return values if self.policy_mask is None else values[self.policy_mask]

    def spread(self, values: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
        """The way back: [trained_tokens] -> [C], with 0 for the others."""
        if self.policy_mask is None:
            return values
        whole = np.zeros(len(self.completion_ids), dtype=values.dtype)
        whole[self.policy_mask] = values
        return whole

    def with_old(self, logprobs: LogProbs) -> TrainRow:
        return replace(self, old_logprobs=logprobs)

    def with_reference(self, logprobs: LogProbs) -> TrainRow:
        return replace(self, ref_logprobs=logprobs)


LossAggMode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
KlEstimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+"]
ImportanceSampling = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True)
class LossSpec:
    """Which loss to minimise. `max_response_length` is the constant divisor of seq-mean-token-sum-norm.

    What has a default here came after the first backends: they may leave it out, and are asked by
    `Backend.loss_obstacle` whether they can compute anything else.
    """

    clip_ratio_low: float
    clip_ratio_high: float
    clip_ratio_c: float | None
    kl_coef: float
    kl_estimator: KlEstimator
    entropy_coeff: float
    loss_agg_mode: LossAggMode
    max_response_length: int
    policy_loss: str = "vanilla"
    """A name of `rlctl.algorithms.losses`."""
    importance_sampling: ImportanceSampling = "token"
    """What the ratio of the clipped loss is of: each token, or the whole completion (its geometric mean)."""
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    ppo_kl_coef: float = 1.0
    token_advantages: bool = False
    """Whether the rows' tokens may have advantages of their own."""


@dataclass(frozen=True, slots=True)
class LossStats:
    """What one forward_backward did, as sums over the tokens that the policy wrote; add two with `+`.

    The losses are already divided by the minibatch's denominator, so that they add up to its loss.
    Token sums (`ppo_kl_sum`, `entropy_sum`, ...) are divided by `tokens` when shown.
    """

    loss: float = 0.0
    pg_loss: float = 0.0
    kl_loss: float = 0.0
    tokens: int = 0
    rows: int = 0
    entropy_sum: float = 0.0
    ppo_kl_sum: float = 0.0
    clipped_tokens: int = 0
    max_ratio_deviation: float | None = 0.0
    """Largest |ratio - 1| over tokens, ratio = exp(current - old log-prob); None where the backend tells no maximum."""
    rollout_probs_diff_sum: float = 0.0
    rollout_probs_diff_max: float = 0.0
    """Sampler against trainer: |exp(rollout log-prob) - exp(current log-prob)|, only meaningful on the first update."""
    tokens_delivered: int = 0
    """Prompt and completion tokens of all rows, as a trainer without sharing would compute them."""
    tokens_computed: int = 0
    flops: float = 0.0

    def __add__(self, other: LossStats) -> LossStats:
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in LossStats.__slots__]
        # Any: what getattr finds has the field's own type.
        joined: dict[str, Any] = {n: _greater(a, b) if n in _MAXIMA else a + b for n, a, b in pairs}
        return LossStats(**joined)


_MAXIMA = frozenset({"max_ratio_deviation", "rollout_probs_diff_max"})


def _greater(mine: float | None, theirs: float | None) -> float | None:
    return None if mine is None or theirs is None else max(mine, theirs)


@dataclass(frozen=True, slots=True)
class OptimStats:
    """What one optimizer update did. `stepped` is False when loss or gradient were not finite: nothing changed."""

    grad_norm: float
    lr: float
    stepped: bool
    changed_fraction: float | None
    """Share of the compute weights whose value changed, 0..1; 0 means the update was lost in rounding. None where the
    backend's weights cannot be seen."""
    max_memory_bytes: int | None = None
    """Most device memory held since the start; None where it is not measured."""


@dataclass(frozen=True, slots=True)
class SyncReport:
    """Which weights the sampler now holds. `version` counts optimizer updates since the start.

    The names are None where the backend's own service sends the weights and does not name them.
    """

    names_expected: int | None
    names_sent: int | None
    version: int


@dataclass(frozen=True, slots=True)
class GenerateStats:
    """What sampling cost: forward FLOPs, seconds, and tokens drawn; add two with `+`."""

    flops: float = 0.0
    seconds: float = 0.0
    tokens: int = 0

    def __add__(self, other: GenerateStats) -> GenerateStats:
        return GenerateStats(self.flops + other.flops, self.seconds + other.seconds, self.tokens + other.tokens)


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """Train factors of that rank instead of the weights; `target_modules` ("all-linear",) takes every layer."""

    rank: int
    alpha: float
    target_modules: tuple[str, ...]


LrSchedule = Literal["constant", "cosine", "linear"]


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """How a run means to update, for a backend that fixes it when it starts; each call is told its part again."""

    loss: LossSpec
    sampling: Sampling
    group_size: int
    rows_per_update: int
    """Most rows of one update; groups without signal may leave fewer."""
    updates_per_step: int
    steps: int
    lr: float
    """The peak, from which `grpo.learning_rate` makes that of each step."""
    lr_schedule: LrSchedule
    warmup_ratio: float
    """Share of all steps."""
    max_off_policy_steps: int = 0
    """Above 0, `generate` runs beside training verbs (`Backend.overlap_obstacle`)."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What every backend must know of the job, whatever its own settings are."""

    model: str
    temperature: float
    """Sampling temperature of training; log-probs are taken at it."""
    end_token_ids: tuple[int, ...]
    """Every token that ends a completion."""
    needs_reference: bool
    max_tokens_per_device: int
    max_prompt_length: int
    max_response_length: int
    weight_decay: float
    betas: tuple[float, float]
    grad_clip: float
    lora: LoraSpec | None = None
    """None trains all weights."""
    plan: UpdatePlan | None = None
    """None where no run stands behind the backend, as in tests of one verb."""


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What `start` found. `peak_flops` is per device, None when unknown, with the reason in `peak_source`."""

    device: str
    num_devices: int
    dtype: str
    peak_flops: float | None
    peak_source: str
    vocab_size: int
    num_parameters: int
    max_context: int | None = None
