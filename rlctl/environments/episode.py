"""One rollout while it is played: its tokens, whose they are, and what the environment said."""

from __future__ import annotations

import asyncio
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rlctl.environments.base import Action, Message, Start, Step
from rlctl.environments.between import Between
from rlctl.rewards.outcome import LARGEST_REWARD, Failure
from rlctl.seeds import turn_seed
from rlctl.types import Completion, Episode, EpisodeEnd, Problem, Prompt

CUT = " [cut]"
"""Behind an answer that was longer than `environment.max_answer_chars`."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a rollout may go on, in tokens unless its name says otherwise."""

    max_turns: int
    max_turn_length: int | None
    max_answer_chars: int
    max_prompt_length: int


@dataclass(frozen=True, slots=True)
class Played:
    """A rollout that is over: what is trained on, what is graded, and how it went."""

    problem: Problem
    """With `extra["episode"]`, plain data, for rewards that want to see more than the policy's text."""
    prompt: Prompt
    completion: Completion
    text: str
    episode: Episode
    failure: Failure | None


class EpisodeState:
    """What is known of a rollout; `ending` is None as long as it goes on."""

    def __init__(
        self, between: Between, bounds: Bounds, *, problem: Problem, prompt: Prompt, sample: int, max_tokens: int
    ) -> None:
        self.between, self.bounds = between, bounds
        self.problem, self.prompt, self.sample, self.max_tokens = problem, prompt, sample, max_tokens
        self.state: Any = None
        self.held = False
        """Whether `reset` made a state that `finish` is not through with."""
        self.finishing: asyncio.Task[Any] | None = None
        """The one call of `finish`."""
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.written: list[bool] = []
        self.parts: list[tuple[Literal["policy", "environment"], str]] = []
        self.turn_length = self.num_turns = self.tool_calls = self.tool_errors = self.answers_cut = 0
        self.turn_text = ""
        self.stopped = False
        """Whether the last draw ended at a token that may end a turn, and at no limit."""
        self.reward: float | None = None
        self.metrics: dict[str, float] = {}
        self.ending: EpisodeEnd | None = None
        self.failure: Failure | None = None

    def begin(self, given: Any) -> None:
        """Take what `reset` gave."""
        if isinstance(given, Failure):
            self.fail(given)
            return
        start = given if isinstance(given, Start) else Start(given)
        self.state, self.held = start.state, True
        if start.messages and (not _are_messages(start.messages) or start.messages[-1][0] != "user"):
            self.fail(nonsense("reset", "messages that are not pairs of role and text, the last of them a user's"))
        elif start.messages:
            self._begin_with(start.messages)

    def _begin_with(self, messages: Sequence[Message]) -> None:
        try:
            ids = self.between.prompt_ids(self.problem, messages)
        except ValueError as error:
            self.fail(Failure("exception", f"the messages that reset gave: the chat template fails, {error}"))
            return
        if len(ids) > self.bounds.max_prompt_length:
            most = self.bounds.max_prompt_length
            text = f"reset gave messages of {len(ids)} tokens, data.max_prompt_length is {most}"
            self.fail(Failure("exception", text))
            return
        self.prompt = replace(self.prompt, token_ids=ids)

    @property
    def room(self) -> int:
        """Tokens that the policy may still write in this turn."""
        left, most = self.max_tokens - len(self.ids), self.bounds.max_turn_length
        return left if most is None else min(left, most - self.turn_length)

    def next_prompt(self, number: int) -> Prompt:
        """All so far, and the seed of that draw."""
        ids = np.concatenate([self.prompt.token_ids, np.array(self.ids, dtype=np.int32)])
        return Prompt(ids, turn_seed(self.prompt.seed, sample=self.sample, turn=number))

    def take(self, completion: Completion) -> None:
        """Add what the policy drew, as far as there is room for it."""
        room = self.room
        self.stopped = completion.finish_reason == "stop" and len(completion.token_ids) <= room
        ids = completion.token_ids[:room].tolist()
        self.ids += ids
        self.logprobs += completion.logprobs[:room].tolist()
        self.written += [True] * len(ids)
        self.turn_length += len(ids)
        own = self.ids[len(self.ids) - self.turn_length :]
        self.turn_text = self.between.tokenizer.decode(np.array(own, dtype=np.int32))

    @property
    def ended(self) -> bool:
        """Whether the policy ended its message."""
        return self.stopped and self.ids[-1] in self.between.end_token_ids

    @property
    def wants_answer(self) -> bool:
        """False where the draw ended at a token that might have ended a turn, and did not."""
        return self.ended or not self.stopped or not self.room or self.between.at_stop(self.turn_text)

    def action(self) -> Action:
        text = self.turn_text
        return Action(text, ended=self.ended, cut=not self.ended and not self.between.at_stop(text))

    def answer(self, given: Any) -> None:
        """Take what `step` gave: go on, or be over."""
        if isinstance(given, Failure):
            self.fail(given)
        elif complaint := _complaint(given, ended=self.ended):
            self.fail(nonsense("step", complaint))
        else:
            self._count(given)
            self._go_on(given)

    def _count(self, step: Step) -> None:
        self.tool_calls += int(step.tool_calls)
        self.tool_errors += int(step.tool_errors)
        self._add_reward(step.reward)
        for name, value in step.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + float(value)

    def _go_on(self, step: Step) -> None:
        answers = bool(_answers(step))
        if step.done or (self.ended and not answers):
            self._end("done")
        elif len(self.ids) >= self.max_tokens:
            self._end("length")
        elif answers:
            self._next_turn(step)
        elif not self.room:  # the turn is as long as it may be, and nobody had anything to say to it
            self._close_turn()
            if self.num_turns >= self.bounds.max_turns:
                self.ending = "turns"

    def _next_turn(self, step: Step) -> None:
        self._close_turn()
        if self.num_turns >= self.bounds.max_turns:
            self.ending = "turns"
            return
        try:
            ids, text = self._answer_ids(step, self.ids[-1])
        except ValueError as error:
            self.fail(Failure("exception", f"the answer of step has no tokens: {error}"))
            return
        if len(self.ids) + len(ids) >= self.max_tokens:
            self.ending = "length"
        else:
            self.ids += ids
            self.logprobs += [0.0] * len(ids)
            self.written += [False] * len(ids)
            self.parts.append(("environment", text))

    def _answer_ids(self, step: Step, last: int) -> tuple[list[int], str]:
        if step.text:
            text = self._cut(step.text)
            return self.between.text_ids(text), text
        if len(step.token_ids):
            return self.between.known_ids(step.token_ids)
        messages = [(role, self._cut(text)) for role, text in step.messages]
        return self.between.message_ids(messages, last=last), "\n".join(text for _, text in messages)

    def _cut(self, text: str) -> str:
        most = self.bounds.max_answer_chars
        if len(text) <= most:
            return text
        self.answers_cut += 1
        return text[:most] + CUT

    def _close_turn(self) -> None:
        text = self.turn_text
        if self.parts and self.parts[-1][0] == "policy":
            text = self.parts.pop()[1] + text
        self.parts.append(("policy", text))
        self.num_turns += 1
        self.turn_length, self.turn_text = 0, ""

    def _end(self, ending: EpisodeEnd) -> None:
        self._close_turn()
        self.ending = ending

    def _add_reward(self, reward: float | None) -> None:
        if reward is not None:
            self.reward = (self.reward or 0.0) + float(reward)

    def finish(self, given: Any) -> None:
        """Take what `finish` gave: a last reward, a Step with one and counts, or None. Nothing where it has failed."""
        if self.failure is not None:
            return
        if isinstance(given, Failure):
            self.fail(given)
        elif isinstance(given, Step):
            if complaint := _complaint(given, ended=False):
                self.fail(nonsense("finish", complaint))
            else:
                self._count(given)
        elif given is not None and not _is_reward(given):
            self.fail(nonsense("finish", f"{given!r:.80} for a reward"))
        else:
            self._add_reward(given)

    def fail(self, failure: Failure) -> None:
        if self.turn_length:
            self._close_turn()
        self.failure, self.ending = failure, "failed"

    def played(self) -> Played:
        assert self.ending is not None
        episode = Episode(
            tuple(self.parts),
            self.ending,
            self.num_turns,
            self.tool_calls,
            self.tool_errors,
            len(self.ids) - sum(self.written),
            self.answers_cut,
            self.reward,
            self.metrics,
        )
        told = {
            "parts": [list(part) for part in self.parts],
            "ending": self.ending,
            "num_turns": self.num_turns,
            "tool_calls": self.tool_calls,
            "tool_errors": self.tool_errors,
            "reward": self.reward,
        }
        problem = replace(self.problem, extra={**self.problem.extra, "episode": told})
        text = "\n".join(text for writer, text in self.parts if writer == "policy")
        return Played(problem, self.prompt, self._completion(), text, episode, self.failure)

    def _completion(self) -> Completion:
        return Completion(
            np.array(self.ids, dtype=np.int32),
            np.array(self.logprobs, dtype=np.float32),
            "length" if self.ending in ("length", "turns") else "stop",
            None if all(self.written) else np.array(self.written, dtype=bool),
        )


def nonsense(method: str, what: str) -> Failure:
    """A failure of an environment that broke its contract."""
    return Failure("exception", f"{method} gave {what}")


def _complaint(given: Any, *, ended: bool) -> str:
    """What is wrong with what `step` gave to a turn that the policy has `ended`, or not; "" when nothing is."""
    if not isinstance(given, Step):
        return f"a {type(given).__name__}, not a Step"
    if not isinstance(given.text, str) or not _are_messages(given.messages) or not _are_ids(given.token_ids):
        return "an answer that is neither text, nor pairs of role and text, nor token ids"
    if len(answers := _answers(given)) > 1:
        return f"both {' and '.join(answers)}; one of them is the answer"
    if answers and answers != ["messages"] and ended and not given.done:
        return f"{answers[0]} to go on behind a message that the policy has ended; messages can follow it"
    if given.reward is not None and not _is_reward(given.reward):
        return f"{given.reward!r:.80} for a reward"
    if not all(isinstance(n, numbers.Integral) and n >= 0 for n in (given.tool_calls, given.tool_errors)):
        return f"{given.tool_calls!r:.40} and {given.tool_errors!r:.40} for its calls of tools and their errors"
    if not isinstance(given.metrics, Mapping) or not all(_is_finite(value) for value in given.metrics.values()):
        return "metrics that are no numbers by name"
    return ""


def _answers(step: Step) -> list[str]:
    """In which forms it answers; at most one makes sense."""
    return [name for name in ("text", "messages", "token_ids") if len(getattr(step, name))]


def _are_ids(ids: object) -> bool:
    if not isinstance(ids, Sequence | np.ndarray) or isinstance(ids, str | bytes):
        return False
    return all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in ids)


def _are_messages(messages: object) -> bool:
    return isinstance(messages, Sequence) and all(
        isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
        for pair in messages
    )


def _is_finite(value: object) -> bool:
    return isinstance(value, numbers.Real | np.bool_) and math.isfinite(value)


def _is_reward(value: object) -> bool:
    return _is_finite(value) and abs(float(value)) < LARGEST_REWARD  # type: ignore[arg-type]  # a number by now
