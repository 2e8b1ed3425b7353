"""From settings to the parts of a run: its backend, what a step needs to know, what saves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from rlctl import grpo
from rlctl.backends import registry
from rlctl.backends.base import AnyBackend
from rlctl.checkpoints.saver import Saver
from rlctl.checkpoints.shelf import Keeping
from rlctl.config import dump
from rlctl.grpo import GrpoConfig
from rlctl.prepare import Prepared
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
    # An evaluation updates nothing.
    plan = settings.plan(steps=prepared.geometry.steps) if isinstance(prepared, Prepared) else None
    backend: AnyBackend = spec.load("backend")(own, replace(job, plan=plan))
    return backend


def grpo_config(settings: Settings) -> GrpoConfig:
    """What a step needs to know of the settings."""
    return GrpoConfig(
        n=settings.rollout.n,
        sampling=settings.rollout.sampling(),
        loss=settings.loss(),
        mini_batch_size=settings.trainer.mini_batch_size or settings.trainer.train_batch_size,
        ppo_epochs=settings.trainer.ppo_epochs,
        norm_adv_by_std=settings.algorithm.norm_adv_by_std,
        drop_zero_signal_groups=settings.algorithm.drop_zero_signal_groups,
        always_score_before_update=settings.trainer.old_log_probs == "always",
        seed=settings.seed,
        max_refills=settings.algorithm.max_refills,
    )


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
