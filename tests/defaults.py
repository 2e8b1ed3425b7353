"""The records that travel, as the default settings make them, with changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlctl.engine.update import Compute
from rlctl.grpo import GrpoConfig
from rlctl.loop import grpo_config as config_of
from rlctl.settings import Settings
from rlctl.types import JobSpec, LossSpec, Sampling


def job(**changes: Any) -> JobSpec:
    return replace(Settings().job(model="", end_token_ids=()), **changes)


def loss(**changes: Any) -> LossSpec:
    return replace(Settings().loss(), **changes)


def sampling(**changes: Any) -> Sampling:
    return replace(Settings().rollout.sampling(), **changes)


def compute(**changes: Any) -> Compute:
    return replace(Compute(temperature=1.0, max_tokens=16384, tile_tokens=1024), **changes)


def grpo_config(**changes: Any) -> GrpoConfig:
    return replace(config_of(Settings()), **changes)
