"""`verifiers`: environments of several turns of the verifiers package, with their tools and their rubric.

A rollout of verifiers asks a client for each answer of the model. Here the roles are the other way round: rlctl draws a
turn and hands it over as if a client had given it, so that the environment's own methods (setup_state, env_response,
stop conditions, clean-up, rubric) run as in a rollout of its own. Calls of tools are read from the policy's text in the
form that Hermes and Qwen templates write, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

Package: https://github.com/PrimeIntellect-ai/verifiers, from 0.1.14 and below 0.2; verifiers/envs/multiturn_env.py has
the loop that this follows.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlctl.environments import verifiers as problems_of
from rlctl.environments.base import Action, Message, Start, Step
from rlctl.errors import ConfigError
from rlctl.types import Problem

_TOOL_CALL = re.compile(r"<tool_call>((?:(?!<tool_call>).)*?)</tool_call>", re.DOTALL)


@dataclass
class Playing:
    """A rollout of theirs; `prompt` is the conversation up to the turn to come, as their messages."""

    environment: Any
    state: Any
    prompt: list[Any]


class VerifiersEnvironment:
    """Plays problems of `data.source = "verifiers:NAME"`, whichever environments they are of."""

    def __init__(self) -> None:
        self.roles: tuple[str, ...] = ("user",)
        self.tools: list[Mapping[str, Any]] = []

    def serves(self, sources: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Take roles and tools from the environments of a run's sources. Raises ConfigError when they do not fit."""
        found = [_environment(source, options) for source, options in sources]
        if len(found) > 1 and any(_tools(one) for one in found):
            raise ConfigError(
                "environments of verifiers with tools cannot be mixed: a chat template lists one set of tools.",
                hint="train on one source at a time.",
            )
        self.tools = [schema for one in found for schema in _tools(one)]
        self.roles = ("tool",) if self.tools else ("user",)

    async def reset(self, problem: Problem) -> Start:
        environment = problems_of.environment_of(problem.extra["environment"], problem.extra["options"])
        row = {key: value for key, value in problem.extra["row"].items() if value is not None}
        state = await environment.init_state(row, client=_no_client(), model="rlctl")
        await environment.setup_state(state)
        prompt = await _next_messages(environment, state)
        messages = _plain(prompt)
        own = () if messages == problem.messages else messages
        return Start(Playing(environment, state, prompt), own)

    async def step(self, playing: Playing, action: Action) -> Step:
        environment, state = playing.environment, playing.state
        response, calls, unread = _response(action)
        await environment.add_model_response(state, playing.prompt, response)
        state["is_truncated"] = state["is_truncated"] or action.cut
        step = Step(tool_calls=calls + unread, tool_errors=unread)
        if await environment.is_completed(state):
            return replace(step, done=True)
        messages = await _next_messages(environment, state)
        if state.get("final_env_response") is not None:
            return replace(step, done=True)
        known = len(playing.prompt) + 1
        if messages[: known - 1] != playing.prompt:
            raise ValueError("the environment writes its conversation anew, which would change past tokens")
        playing.prompt = messages
        return replace(step, messages=_plain(messages[known:]))

    async def finish(self, playing: Playing, ending: str) -> Step | None:
        """Clean up, and let the rubric say what the whole rollout is worth, unless it has come to no end."""
        environment, state = playing.environment, playing.state
        state["is_completed"] = True
        await environment.cleanup(state)
        if ending in ("failed", "abandoned"):
            return None
        if state.get("error") is not None:
            raise state["error"]
        await environment.rubric.score_rollout(state)
        metrics = {str(name): float(value) for name, value in (state.get("metrics") or {}).items()}
        return Step(reward=float(state["reward"]), metrics=metrics)


async def _next_messages(environment: Any, state: Any) -> list[Any]:
    from verifiers.utils.message_utils import maybe_normalize_messages

    messages = await environment.get_prompt_messages(state)
    return list(maybe_normalize_messages(messages, field_name="prompt_messages"))


def _plain(messages: Sequence[Any]) -> tuple[Message, ...]:
    """Their messages as (role, text). Raises ValueError for one that is not text, an image say."""
    return tuple((str(message.role), _text(message)) for message in messages)


def _text(message: Any) -> str:
    content = message.content
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    texts = [part.get("text") if isinstance(part, Mapping) else getattr(part, "text", None) for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"a message of role {message.role!r} is not plain text")
    return "".join(text for text in texts if text)


def _response(action: Action) -> tuple[Any, int, int]:
    """(the turn as a client would have given it, how many calls of tools it makes, how many that cannot be read)."""
    from verifiers.types import Response, ResponseMessage, ToolCall

    found = [_parsed(text) for text in _TOOL_CALL.findall(action.text)]
    calls = [
        ToolCall(id=f"call_{number}", name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(each for each in found if each is not None)
    ]
    message = ResponseMessage(
        content=_TOOL_CALL.sub("", action.text).strip() if calls else action.text,
        tool_calls=calls or None,
        finish_reason="length" if action.cut else "tool_calls" if calls else "stop",
        is_truncated=action.cut,
    )
    return Response(id="rlctl", created=0, model="rlctl", message=message), len(calls), found.count(None)


def _parsed(text: str) -> tuple[str, str] | None:
    """(name, arguments as JSON) of a call of a tool; None for what is none."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return call["name"], json.dumps(call.get("arguments") or {})


def _environment(source: str, options: Mapping[str, Any]) -> Any:
    if not source.startswith(problems_of.PREFIX):
        raise ConfigError(
            f"environment.name = 'verifiers' plays problems of verifiers:NAME, and data.source is {source!r}.",
            hint="--set data.source=verifiers:NAME, with the environment's package installed.",
        )
    name = source.removeprefix(problems_of.PREFIX)
    environment = problems_of.environment_of(name, json.dumps(dict(options), sort_keys=True))
    import verifiers.types

    if not hasattr(verifiers.types, "ResponseMessage"):
        raise ConfigError(
            f"verifiers {getattr(verifiers, '__version__', '')} cannot be played turn by turn.",
            hint="pip install 'verifiers>=0.1.14,<0.2'",
        )
    return environment


def _tools(environment: Any) -> list[Mapping[str, Any]]:
    """The tools in the form that chat templates take."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in getattr(environment, "tool_defs", None) or []
    ]


@functools.cache
def _no_client() -> Any:
    """A client that no one may call: rollouts here ask none."""
    from verifiers.clients import Client

    kind: Any = type("NoClient", (Client,), {})
    kind.__abstractmethods__ = frozenset()
    return kind(None)
