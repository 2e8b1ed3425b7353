"""From settings to the parts of a run: its backend, what a step needs to know, what saves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from rlctl import grpo
from rlctl.algorithms import estimators, losses
from rlctl.algorithms.comparing import AdvantageSpec
from rlctl.algorithms.correction import CorrectionSpec
from rlctl.algorithms.covariance import SelectionSpec
from rlctl.algorithms.kl_in_reward import KlControl
from rlctl.backends import registry
from rlctl.backends.base import AnyBackend, must_overlap
from rlctl.checkpoints.saver import Saver
from rlctl.checkpoints.shelf import Keeping
from rlctl.config import dump
from rlctl.errors import ConfigError
from rlctl.grpo import GrpoConfig
from rlctl.prepare import Prepared
from rlctl.rewards.shaping import ShapingSpec
from rlctl.runfiles import RunFiles
from rlctl.settings import Settings


class HasPolicy(Protocol):
    """What a backend is made from."""

    @property
    def settings(self) -> Settings: ...
    @property
    def model(self) -> str: ...
    @property
    def end_token_ids(self) -> tuple[int, ...]: ...


def backend_for(prepared: HasPolicy) -> AnyBackend:
    """The backend that the settings name, not started.

    Raises BackendNotFound, BackendUnavailable, and ConfigError where the backend cannot do what the settings ask.
    """
    settings = prepared.settings
    spec = registry.get(settings.backend)
    own = settings.local if settings.backend == "local" else settings.remote_backend[settings.backend]
    job = settings.job(model=prepared.model, end_token_ids=prepared.end_token_ids)
    # An evaluation updates nothing, and so needs no reference model.
    plan = settings.plan(steps=prepared.geometry.steps) if isinstance(prepared, Prepared) else None
    kind = spec.load("backend")
    if settings.environment.name is not None and not kind.plays_episodes:
        raise ConfigError(
            f"environment.name = {settings.environment.name!r}: backend {settings.backend!r} cannot leave the "
            "environment's tokens out of the loss, or go on from token ids, so it would train on what the policy did "
            "not write.",
            hint="take a backend that can: local, ray, http.",
        )
    needs_reference = job.needs_reference and plan is not None
    backend: AnyBackend = kind(own, replace(job, plan=plan, needs_reference=needs_reference))
    if plan is not None and (obstacle := backend.loss_obstacle(plan.loss)) is not None:
        raise ConfigError(
            f"backend {settings.backend} cannot compute this loss: {obstacle}.",
            hint="change the setting, or use another backend; docs/algorithms.md says which backend can do what.",
        )
    if plan is not None:
        must_overlap(backend, plan.max_off_policy_steps, name=settings.backend)
    return backend


def grpo_config(settings: Settings) -> GrpoConfig:
    """What a step needs to know of the settings."""
    return GrpoConfig(
        n=settings.rollout.n,
        sampling=settings.rollout.sampling(),
        loss=settings.loss(),
        mini_batch_size=settings.trainer.mini_batch_size or settings.trainer.train_batch_size,
        ppo_epochs=settings.trainer.ppo_epochs,
        advantage=advantage_spec(settings),
        # What a row's sampler was told of it is of an older policy.
        always_score_before_update=settings.trainer.old_log_probs == "always"
        or settings.trainer.max_off_policy_steps > 0,
        seed=settings.seed,
        max_refills=settings.algorithm.max_refills,
        shaping=shaping_spec(settings),
        correction=correction_spec(settings),
        selection=selection_spec(settings),
    )


def advantage_spec(settings: Settings) -> AdvantageSpec:
    """How rewards become advantages."""
    algorithm = settings.algorithm
    return AdvantageSpec(
        estimator=estimators.registry.get(algorithm.adv_estimator),
        norm_adv_by_std=algorithm.norm_adv_by_std,
        drop_zero_signal_groups=algorithm.drop_zero_signal_groups,
        mask_truncated=algorithm.mask_truncated_completions,
        kl_coef=algorithm.weight_of_kl_in_reward,
        kl_penalty=algorithm.kl_penalty,
        kl_control=kl_control(settings),
    )


def kl_control(settings: Settings) -> KlControl | None:
    """What steers the weight of KL off the reward; None for a fixed one."""
    algorithm = settings.algorithm
    return None if algorithm.kl_target is None else KlControl(algorithm.kl_target, algorithm.kl_horizon)


def shaping_spec(settings: Settings) -> ShapingSpec | None:
    """What is done to rewards beside weighing them; None for nothing."""
    reward = settings.reward
    spec = ShapingSpec(
        max_response_length=settings.rollout.max_response_length,
        rank_in_group=reward.rank_in_group,
        overlong_buffer_len=reward.overlong_buffer_len,
        overlong_penalty_factor=reward.overlong_penalty_factor,
        length_penalty=reward.length_penalty,
        length_penalty_form=reward.length_penalty_form,
    )
    return None if spec.is_off else spec


def correction_spec(settings: Settings) -> CorrectionSpec | None:
    """How the sampler's probabilities are corrected; None for not at all."""
    algorithm = settings.algorithm
    if algorithm.rollout_is == "off":
        return None
    return CorrectionSpec(
        level=algorithm.rollout_is,
        mode=algorithm.rollout_is_mode,
        combine=algorithm.rollout_is_combine,
        high=algorithm.rollout_is_threshold,
        low=algorithm.least_weight,
    )


def selection_spec(settings: Settings) -> SelectionSpec | None:
    """Which tokens of a minibatch the loss treats apart; None for a loss that treats none."""
    algorithm = settings.algorithm
    kind = losses.registry.get(algorithm.policy_loss).selection
    if kind == "clip_cov":
        return SelectionSpec(kind, algorithm.clip_cov_ratio, algorithm.clip_cov_lb, algorithm.clip_cov_ub)
    return SelectionSpec(kind, algorithm.kl_cov_ratio) if kind == "kl_cov" else None


def learning_rate(settings: Settings, step: int, *, total: int) -> float:
    """The learning rate of step 1..total."""
    trainer = settings.trainer
    return grpo.learning_rate(
        step,
        peak=trainer.lr,
        schedule=trainer.lr_schedule,
        warmup_ratio=trainer.warmup_ratio,
        total_steps=total,
    )


def saver_for(prepared: Prepared, backend: AnyBackend, *, files: RunFiles, note: Callable[[str], None]) -> Saver:
    """What writes the run's checkpoints, as the settings say."""
    trainer = prepared.settings.trainer
    return Saver(
        backend,
        prepared.tokenizer,
        folder=files.checkpoints,
        config=files.config | {"settings": dump(prepared.settings)},
        keeping=Keeping(trainer.keep_last, trainer.keep_every, trainer.keep_best),
        in_background=trainer.save_in_background,
        goes_on=trainer.on_save_error == "continue",
        note=note,
    )
