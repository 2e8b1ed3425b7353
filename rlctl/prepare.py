"""Everything that can be wrong before the first second of compute: tokenizer, rewards, data, geometry.

`rlctl train --dry-run` stops after this; a run starts from it. No model is loaded here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rlctl import data, modelpath
from rlctl import tokenizer as tokenizers
from rlctl.algorithms.idle import idle_lines
from rlctl.backends.registry import open_plugins
from rlctl.curriculum import Curriculum
from rlctl.data import Pool
from rlctl.data_filters import overlapping
from rlctl.environments.grading import with_own_graders
from rlctl.environments.playing import Player
from rlctl.environments.setting_up import must_be_played, player_of, with_environment
from rlctl.errors import ConfigError, DataError, ModelError
from rlctl.feed import Feed
from rlctl.rewards import RewardSet
from rlctl.rewards.golds import check_golds
from rlctl.rewards.loading import rewards_of
from rlctl.settings import Settings
from rlctl.text_to_sql.loading import SqlProblems
from rlctl.tokenizer import ChatTokenizer
from rlctl.types import Problem

LAZY_CHECK = 256
"""Problems of a generated set whose prompts are measured before the run; the rest are measured as they come."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How much a run does, as counts; tokens are upper bounds."""

    num_problems: int
    num_eval_problems: int
    prompts_per_step: int
    samples_per_step: int
    updates_per_step: int
    steps: int
    steps_per_epoch: int
    max_tokens_per_step: int

    def lines(self) -> list[str]:
        run = f"{self.steps * self.samples_per_step:,} samples, {self.steps * self.updates_per_step:,} updates"
        return [
            f"problems: {self.num_problems:,} to train on, {self.num_eval_problems:,} to evaluate on",
            step_line(
                self.prompts_per_step,
                samples=self.samples_per_step,
                updates=self.updates_per_step,
                max_tokens=self.max_tokens_per_step,
            ),
            f"the run: {self.steps} steps ({self.steps_per_epoch:,} an epoch), {run}",
        ]


def step_line(prompts: int, *, samples: int, updates: int, max_tokens: int) -> str:
    """A step's counts, in words."""
    many = "update" if updates == 1 else "updates"
    return f"a step: {prompts} prompts, {samples} samples, {updates} {many}, at most {max_tokens:,} tokens"


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run needs beside its backend."""

    settings: Settings
    model: str
    """The one of `model.path` that was found."""
    tokenizer: ChatTokenizer
    end_token_ids: tuple[int, ...]
    rewards: RewardSet
    pools: Sequence[Pool]
    """What is trained on, by source."""
    eval_problems: Sequence[Problem]
    num_shared_questions: int
    """Evaluation problems whose question is trained on too."""
    geometry: Geometry
    notes: Sequence[str]
    player: Player | None = None
    """The environment that answers each turn; None where a completion is one turn."""

    def close(self) -> None:
        """End what rewards and environment have running."""
        self.rewards.close()
        if self.player is not None:
            self.player.environment.close()

    @property
    def problems(self) -> Sequence[Problem]:
        """All that is trained on."""
        return data.joined(self.pools)


def prepare(settings: Settings) -> Prepared:
    """Load and check what a run needs. Raises ConfigError (DataError, ModelError) with the cure."""
    rewards = rewards_of(settings.reward)
    model, tokenizer, end_token_ids, model_config = load_policy(settings)
    player = player_of(settings, tokenizer, end_token_ids=end_token_ids)
    rewards, told = with_environment(rewards, player, own_grader=settings.reward.own_grader)
    pools, eval_problems, notes = _problems(settings, tokenizer, rewards)
    if not told:
        rewards, told = with_own_graders(rewards, settings)
    notes += told
    problems = data.joined(pools)
    must_be_played(player, problems)
    _must_know_ids(tokenizer, problems[0] if len(problems) else None, model_config)
    shared = _num_shared_questions(pools, eval_problems)
    if shared:
        notes.append(f"{shared} evaluation questions are also trained on; their scores show memory, not skill")
    if settings.reward.check:
        notes += check_golds(rewards, problems)
    if settings.trainer.max_off_policy_steps and settings.algorithm.rollout_is == "off":
        notes.append(
            f"trainer.max_off_policy_steps = {settings.trainer.max_off_policy_steps} trains on samples of older "
            "policies as if they were the current one's: algorithm.rollout_is = token weighs them"
        )
    notes += idle_lines(settings.algorithm)
    notes += [f"a plugin failed and is not there: {failure.message}" for failure in open_plugins()]
    geometry = _geometry(settings, num_problems=len(problems), num_eval_problems=len(eval_problems))
    return Prepared(
        settings, model, tokenizer, end_token_ids, rewards, pools, eval_problems, shared, geometry, notes, player
    )


class Policy(NamedTuple):
    """A model's files and what is known of it without loading it."""

    model: str
    tokenizer: ChatTokenizer
    end_token_ids: tuple[int, ...]
    config: dict[str, Any]


def load_policy(settings: Settings) -> Policy:
    """Find and check the model's files, load its tokenizer. Raises ModelError or ConfigError."""
    model = modelpath.first_available(settings.model.path)
    modelpath.check_weights(modelpath.locate(model), model)
    tokenizer = tokenizers.load(
        model,
        tokenizer=settings.model.tokenizer,
        chat_template=settings.model.chat_template,
        prompt_format=settings.data.prompt_format,
        system_prompt=settings.data.system_prompt,
        prompt_suffix=settings.data.prompt_suffix,
    )
    end_token_ids = tokenizers.end_token_ids(model, tokenizer.tokenizer)
    if not end_token_ids:
        raise ConfigError(
            f"{model} names no end token, so no completion could ever end.",
            hint="model.tokenizer can name a tokenizer that has one.",
        )
    model_config = tokenizers.model_json(model, "config.json")
    must_fit_context(settings, model_config)
    return Policy(model, tokenizer, end_token_ids, model_config)


def _problems(
    settings: Settings, tokenizer: ChatTokenizer, rewards: RewardSet
) -> tuple[list[Pool], Sequence[Problem], list[str]]:
    train = data.load_pools(settings.data, split="train", seed=settings.seed, check=rewards.gold_complaint)
    evaluation = data.load_problems(settings.data, split="eval", seed=settings.seed, check=rewards.gold_complaint)
    sql = SqlProblems(settings, rewards, tokenizer)
    train = [replace(pool, problems=sql.ready(pool.problems)) for pool in train]
    evaluation = sql.ready(evaluation)
    notes: list[str] = []
    pools, dropped = [], 0
    for pool in train:
        problems, too_long = within_length(settings, tokenizer, pool.problems)
        pools.append(replace(pool, problems=problems))
        dropped += too_long
    evaluation, eval_dropped = within_length(settings, tokenizer, evaluation) if len(evaluation) else (evaluation, 0)
    notes += sql.notes()
    limit = settings.data.max_prompt_length
    if dropped or eval_dropped:
        notes.append(
            f"{dropped} training and {eval_dropped} evaluation prompts longer than {limit} tokens are left out"
        )
    if not len(evaluation):
        notes.append("no problems to evaluate on: the training file is too small to hold any out; set data.eval_path")
    return pools, evaluation, notes


def _num_shared_questions(pools: Sequence[Pool], evaluation: Sequence[Problem]) -> int:
    """Evaluation problems whose question is trained on too; a generator keeps its splits apart by itself."""
    listed = [pool for pool in pools if not isinstance(pool.problems, data.LazyProblems)]
    return len(overlapping(data.joined(listed), evaluation)) if listed else 0


def must_fit_context(settings: Settings, model_config: Mapping[str, Any]) -> None:
    """Raises ConfigError when a prompt and a completion at their limits leave the model's context."""
    context = model_config.get("max_position_embeddings")
    longest = settings.data.max_prompt_length + settings.rollout.max_response_length
    if isinstance(context, int) and longest > context:
        raise ConfigError(
            f"data.max_prompt_length = {settings.data.max_prompt_length} and rollout.max_response_length = "
            f"{settings.rollout.max_response_length} make {longest} tokens; the model's context is {context}.",
            hint="lower one of the two.",
        )


def _must_know_ids(tokenizer: ChatTokenizer, problem: Problem | None, model_config: dict[str, Any]) -> None:
    vocab = model_config.get("vocab_size")
    largest = int(tokenizer.encode(problem).max()) if problem is not None else 0
    if isinstance(vocab, int) and largest >= vocab:
        raise ModelError(
            f"the first prompt holds token {largest}, the model knows {vocab} tokens.",
            hint="the tokenizer is not this model's: look at model.tokenizer.",
        )


def within_length(
    settings: Settings, tokenizer: ChatTokenizer, problems: Sequence[Problem]
) -> tuple[Sequence[Problem], int]:
    limit = settings.data.max_prompt_length
    if isinstance(problems, data.LazyProblems):
        first = problems[:LAZY_CHECK]
        data.filter_long(first, [len(tokenizer.encode(p)) for p in first], max_prompt_length=limit)
        return problems, 0
    kept = data.filter_long(problems, [len(tokenizer.encode(p)) for p in problems], max_prompt_length=limit)
    return kept.problems, len(kept.dropped)


def _geometry(settings: Settings, *, num_problems: int, num_eval_problems: int) -> Geometry:
    trainer, rollout = settings.trainer, settings.rollout
    data.require_full_batch(num_problems, batch_size=trainer.train_batch_size)
    per_epoch = num_problems // trainer.train_batch_size
    samples = trainer.train_batch_size * rollout.n
    return Geometry(
        num_problems=num_problems,
        num_eval_problems=num_eval_problems,
        prompts_per_step=trainer.train_batch_size,
        samples_per_step=samples,
        updates_per_step=trainer.updates_per_step,
        steps=trainer.steps or trainer.epochs * per_epoch,
        steps_per_epoch=per_epoch,
        max_tokens_per_step=samples * (settings.data.max_prompt_length + rollout.max_response_length),
    )


def feed_of(prepared: Prepared) -> Feed:
    """What hands out the run's problems, from its first step on. Raises DataError when a source is too small."""
    settings = prepared.settings
    curriculum = settings.data.curriculum
    return Feed(
        prepared.pools,
        batch_size=prepared.geometry.prompts_per_step,
        seed=settings.seed,
        shuffle=settings.data.shuffle,
        curriculum=Curriculum(curriculum.revisit_share, curriculum.visits, settings.seed)
        if curriculum.enabled
        else None,
        # Problems of a file or the hub were measured, all of them, before the run.
        accept=lambda problems: _must_be_short(prepared, problems),
    )


def batch_of(prepared: Prepared, step: int) -> tuple[list[Problem], int]:
    """(the problems of step 1.., its epoch 0..): a pure function of the seed, whatever ran before, unless the run has a
    curriculum or refills its batches.

    Raises DataError when a generated prompt is too long.
    """
    feed = feed_of(prepared)
    feed.seek(step)
    return feed.batch(step), epoch_of(prepared, step)


def epoch_of(prepared: Prepared, step: int) -> int:
    return (step - 1) // prepared.geometry.steps_per_epoch


def _must_be_short(prepared: Prepared, problems: Sequence[Problem]) -> None:
    limit = prepared.settings.data.max_prompt_length
    if not any(isinstance(pool.problems, data.LazyProblems) for pool in prepared.pools):
        return
    too_long = [p.id for p in problems if len(prepared.tokenizer.encode(p)) > limit]
    if too_long:
        raise DataError(
            f"the prompt of {too_long[0]} is longer than data.max_prompt_length = {limit} tokens.",
            hint="raise data.max_prompt_length.",
        )
