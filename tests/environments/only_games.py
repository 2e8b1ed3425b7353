"""A plugin that registers an environment and no backend."""

from __future__ import annotations

from rlctl.environments.registry import register

register("only-game", environment="tests.environments.games:Silent")
