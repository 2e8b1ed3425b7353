"""Chapter 3: every setting of a run, with its default, its meaning and the rules between them.

This package is the one place where a default lives; the text under a field is its one documentation
(`rlctl config schema` prints it). How presets, files, RLCTL_ variables and options become one
Settings is `config.py`. Settings are frozen, and unknown keys are refused everywhere.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from rlctl.algorithms import estimators
from rlctl.algorithms.kl_in_reward import MOST_ERROR
from rlctl.algorithms.losses import agg_mode_of
from rlctl.backends.local.settings import LocalSettings
from rlctl.settings.algorithm import AlgorithmSettings
from rlctl.settings.data import DataSettings
from rlctl.settings.environment import EnvironmentSettings
from rlctl.settings.model import ModelSettings
from rlctl.settings.reward import RewardSettings
from rlctl.settings.rollout import EvalSettings, RolloutSettings
from rlctl.settings.run import RunSettings
from rlctl.settings.serve import ServeSettings
from rlctl.settings.tracking import TrackingSettings
from rlctl.settings.trainer import TrainerSettings
from rlctl.types import JobSpec, LoraSpec, LossSpec, Sampling, UpdatePlan

__all__ = ["DataSettings", "Settings"]


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
    environment: EnvironmentSettings = EnvironmentSettings()
    reward: RewardSettings = RewardSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    trainer: TrainerSettings = TrainerSettings()
    eval: EvalSettings = EvalSettings()
    run: RunSettings = RunSettings()
    tracking: TrackingSettings = TrackingSettings()
    serve: ServeSettings = ServeSettings()
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

    @model_validator(mode="after")
    def a_correction_compares_whole_distributions(self) -> Settings:
        rollout, level = self.rollout, self.algorithm.rollout_is
        if level != "off" and (rollout.top_p < 1 or rollout.top_k != -1 or rollout.min_p > 0):
            raise ValueError(
                f"algorithm.rollout_is = {level} compares the trainer's with the sampler's probabilities, which are "
                "both of the whole vocabulary: set rollout.top_p = 1.0, rollout.top_k = -1 and rollout.min_p = 0.0, or "
                "algorithm.rollout_is = off"
            )
        return self

    @model_validator(mode="after")
    def ranks_are_of_the_reward_that_is_compared(self) -> Settings:
        estimator = self.algorithm.adv_estimator
        if self.reward.rank_in_group and estimator in ("gdpo", "remax"):
            why = {"gdpo": "looks at each reward function by itself", "remax": "compares with a completion of no group"}
            raise ValueError(
                f"reward.rank_in_group ranks the sum of the rewards, but algorithm.adv_estimator = {estimator} "
                f"{why[estimator]}; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def a_steered_weight_of_kl_stays_above_0(self) -> Settings:
        horizon, completions = self.algorithm.kl_horizon, self.trainer.train_batch_size * self.rollout.n
        if self.algorithm.kl_target is not None and completions >= horizon / MOST_ERROR:
            raise ValueError(
                f"algorithm.kl_horizon = {horizon} is too short for the {completions} completions of a step: kl_coef "
                f"could fall to 0 and below in a single one; make it more than {math.floor(completions * MOST_ERROR)}"
            )
        return self

    @model_validator(mode="after")
    def the_overlong_buffer_fits(self) -> Settings:
        buffer, longest = self.reward.overlong_buffer_len, self.rollout.max_response_length
        if buffer > longest:
            raise ValueError(
                f"reward.overlong_buffer_len = {buffer} is the last part of rollout.max_response_length = {longest}, "
                "and cannot be longer"
            )
        return self

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
            needs_reference=self.algorithm.needs_reference,
            max_tokens_per_device=self.trainer.max_tokens_per_device,
            max_prompt_length=self.data.max_prompt_length,
            max_response_length=self.rollout.max_response_length,
            weight_decay=self.trainer.weight_decay,
            betas=self.trainer.betas,
            grad_clip=self.trainer.grad_clip,
            lora=LoraSpec(lora.rank, lora.alpha, lora.target_modules) if lora.rank else None,
        )

    def plan(self, *, steps: int) -> UpdatePlan:
        """How a run of that many steps means to update."""
        trainer = self.trainer
        return UpdatePlan(
            loss=self.loss(),
            sampling=self.rollout.sampling(),
            group_size=self.rollout.n,
            rows_per_update=(trainer.mini_batch_size or trainer.train_batch_size) * self.rollout.n,
            updates_per_step=trainer.updates_per_step,
            steps=steps,
            lr=trainer.lr,
            lr_schedule=trainer.lr_schedule,
            warmup_ratio=trainer.warmup_ratio,
            max_off_policy_steps=trainer.max_off_policy_steps,
        )

    def loss(self) -> LossSpec:
        algorithm = self.algorithm
        estimator = estimators.registry.get(algorithm.adv_estimator)
        return LossSpec(
            clip_ratio_low=algorithm.clip_ratio_low,
            clip_ratio_high=algorithm.clip_ratio_high,
            clip_ratio_c=algorithm.clip_ratio_c,
            kl_coef=algorithm.weight_of_kl_in_loss,
            kl_estimator=algorithm.kl_estimator,
            entropy_coeff=algorithm.entropy_coeff,
            loss_agg_mode=agg_mode_of(algorithm.policy_loss, algorithm.loss_agg_mode),
            max_response_length=self.rollout.max_response_length,
            policy_loss=algorithm.policy_loss,
            importance_sampling=algorithm.importance_sampling,
            tau_pos=algorithm.tau_pos,
            tau_neg=algorithm.tau_neg,
            ppo_kl_coef=algorithm.ppo_kl_coef,
            token_advantages=algorithm.rollout_is != "off"
            or estimator.gives_tokens_their_own(kl_in_reward=algorithm.use_kl_in_reward),
        )

    def evaluation(self) -> Sampling:
        """Sampling of an evaluation: from the full distribution, whatever filters training was allowed."""
        return Sampling(self.eval.temperature, 1.0, -1, 0.0, self.rollout.max_response_length)
