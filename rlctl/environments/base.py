"""The contract of an environment: what answers a policy that writes in turns, a tool or a game say.

    reset(problem) -> state                 once for each rollout; the state is its own, and comes back with each step
    step(state, action) -> Step             once for each turn of the policy

Either may be a coroutine. What an environment may say of itself, as attributes or methods, all of them optional:

    grades = True                   whether its rewards are the score; False leaves that to `reward.functions`
    stop = ("=",)                   texts that end a turn when the policy's text ends with one, beside its end tokens
    roles = ("user",)               roles of the messages that it answers with; () where it answers with text alone
    tools = [...]                   JSON schemas of tools, for chat templates that list them
    runs = "thread"                 "inline" for calls that take microseconds and cannot hang
    finish(state, ending)           once for each state, however its rollout ended: frees what it holds, and gives a
                                    last reward, what a rubric gives say, or a Step with one
    serves(sources)                 before the run: (data.source, data.options) of every table; may set the above
    close()                         at the end of the run

Rollouts are stepped at once from several threads, so what an instance shares between them needs a lock of its own.
Names of settings follow verl's multi-turn rollouts, https://verl.readthedocs.io/en/latest/sglang_multiturn/multiturn.html.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlctl.types import Problem

Message = tuple[str, str]
"""(role, text), as in `Problem.messages`."""


@dataclass(frozen=True, slots=True)
class Start:
    """What `reset` may give in place of a bare state: `messages` are the conversation to begin with, the problem's
    own where there are none."""

    state: Any = None
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """One turn of the policy: the text since the environment's last answer, without special tokens."""

    text: str
    ended: bool
    """Whether the policy ended its message; false where it stands at a stop text, or is cut."""
    cut: bool = False
    """Whether it ran into a limit of tokens, so that it may be half a sentence."""


@dataclass(frozen=True, slots=True)
class Step:
    """What an environment answers. `messages` are messages of their own, after which the policy has a new turn; `text`
    or `token_ids` go on right behind what the policy wrote, in its own message; with none of them the policy just goes
    on, and has come to its end where it ended its message.
    """

    text: str = ""
    messages: Sequence[Message] = ()
    token_ids: Sequence[int] = ()
    reward: float | None = None
    """Added to the rollout's reward."""
    done: bool = False
    tool_calls: int = 0
    tool_errors: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Counts by name, added up over a rollout: `environment/metrics/NAME/mean`."""


class Environment(Protocol):
    """What every environment has; see above for what it may have."""

    def reset(self, problem: Problem) -> Any: ...

    def step(self, state: Any, action: Action) -> Any: ...
