"""A reward for trying the farm out: its policy knows no context, so it can only learn which tokens pay."""

from __future__ import annotations

from rlctl.types import Problem


def ascii_share(problem: Problem, completion: str) -> float:
    """Share of the completion's characters that are ASCII."""
    return sum(letter.isascii() for letter in completion) / max(len(completion), 1)
