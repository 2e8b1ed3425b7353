"""`[environment]`: what answers the policy where it writes in turns, and how long that may go on."""

from __future__ import annotations

from typing import Any

from pydantic import Field, PositiveFloat

from rlctl.settings.block import Block, Count


class EnvironmentSettings(Block):
    name: str | None = None
    """`calculator`, `verifiers`, one that a plugin registers, or a class of your own as `package.module:Class`; null is
    one turn a completion, with nobody to answer."""
    options: dict[str, Any] = Field({})
    """Keyword arguments of the environment's class."""
    max_turns: Count = 16
    """Most turns of the policy in one rollout; one that would need more ends there and is counted as cut."""
    max_turn_length: Count | None = None
    """Longest turn in tokens; null is all that is left. `rollout.max_response_length` bounds all turns of a rollout
    together, answers of the environment included."""
    max_answer_chars: Count = 2000
    """Characters of an answer of the environment; a longer one is cut there, and says so."""
    timeout_s: PositiveFloat = 30.0
    """Seconds that one call of the environment may take; a rollout whose call takes longer is left out and counted."""
