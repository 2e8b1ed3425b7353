"""The tokens that stand between two turns of the policy, and where a turn ends.

What the policy wrote stays as the ids it drew: nothing is decoded and encoded again. An answer that is text is encoded
alone and goes on right behind them. An answer in messages needs what the chat template writes around it; that is the
difference of two renderings of a made-up conversation, before and after an assistant said a word that is easy to find:

    before    <user>2 + 2?<end><assistant>
    after     <user>2 + 2?<end><assistant>WORD<end><user>answer<end><assistant>
                                              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

That end is encoded, less its first token where the policy drew the end of its message itself.

This is exact as long as the template leaves earlier turns as they were: what it writes before WORD is what stood there
when the policy began. A template that does not, as those that strip the thinking of past turns, is refused before the
run: the policy would be trained on contexts that nobody gives it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlctl.environments.base import Message
from rlctl.errors import ConfigError
from rlctl.tokenizer import ChatTokenizer
from rlctl.types import Problem, TokenIds

QUESTION = ("user", "2 + 2?")
WORD = "Jabberwock"
"""What the made-up assistant says; no template writes it by itself."""
OPENING = "<think>\n"
THOUGHT = f"{OPENING}slithy\n</think>\n\n{WORD}"


@dataclass(frozen=True, slots=True)
class Between:
    """A tokenizer, seen from between two turns."""

    tokenizer: ChatTokenizer
    end_token_ids: tuple[int, ...]
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """Every token with which a text can come to end in one of `stop`."""
    special: re.Pattern[str] | None = None
    """The texts that the tokenizer reads as special tokens."""
    obstacles: dict[str, str] = field(default_factory=dict)
    """For roles that the template was tried with, why it cannot go on with one; "" where it can."""

    def at_stop(self, text: str) -> bool:
        return bool(self.stop) and text.endswith(self.stop)

    def prompt_ids(self, problem: Problem, messages: Sequence[Message]) -> TokenIds:
        """The prompt of a conversation that an environment begins with. Raises ValueError when it does not render."""
        conversation = replace(problem, question=messages[-1][1], messages=tuple((r, t) for r, t in messages))
        try:
            return self.tokenizer.encode(conversation)
        except _template_errors() as error:
            raise ValueError(f"it raises {type(error).__name__}: {error}") from error

    def text_ids(self, text: str) -> list[int]:
        """The ids of a text that goes on behind others. Raises ValueError for what is no text, half a character say."""
        tokenizer, harmless = self.tokenizer.tokenizer, self._harmless(text)
        ids = _ids(tokenizer, harmless)
        if not tokenizer.convert_ids_to_tokens(ids[:1] or [0])[0].startswith("▁"):
            return ids
        # Such a tokenizer puts a space before every text, which is none that goes on behind another.
        before = _ids(tokenizer, "\n")
        both = _ids(tokenizer, "\n" + harmless)
        return both[len(before) :] if both[: len(before)] == before else ids

    def known_ids(self, given: Sequence[int]) -> tuple[list[int], str]:
        """Ids that an environment gave, and their text. Raises ValueError when the model has no such token."""
        ids = [int(i) for i in given]
        wrong = [i for i in ids if not 0 <= i < len(self.tokenizer.tokenizer)]
        if wrong:
            raise ValueError(f"there is no token {wrong[0]}")
        return ids, str(self.tokenizer.tokenizer.decode(ids))

    def message_ids(self, messages: Sequence[Message], *, last: int) -> list[int]:
        """The ids of messages that follow on a turn of the policy whose last token is `last`, up to where its next
        turn begins. Raises ValueError when the template cannot write them."""
        for role, _ in messages:
            self._must_go_on(role)
        given = [(role, self._harmless(text)) for role, text in messages]
        tokenizer = self.tokenizer.tokenizer
        ids = _ids(tokenizer, _tail(tokenizer, given, says=_what_it_says(tokenizer)[0]))
        drawn = bool(ids) and ids[0] == last and last in self.end_token_ids
        return ids[1:] if drawn else ids

    def _must_go_on(self, role: str) -> None:
        """Raises ValueError for a role that the environment did not speak of, if the template cannot go on with it."""
        if role not in self.obstacles:
            self.obstacles[role] = _obstacle(self.tokenizer.tokenizer, role)
        if self.obstacles[role]:
            raise ValueError(self.obstacles[role])

    def _harmless(self, text: str) -> str:
        """The text with a space inside whatever would be read as a special token: a tool must not end the turn."""
        return self.special.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text) if self.special else text


def _ids(tokenizer: Any, text: str) -> list[int]:
    text.encode()  # a lone surrogate, which a tokenizer takes for no text at all, is a ValueError here
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def between_of(
    tokenizer: ChatTokenizer, *, end_token_ids: tuple[int, ...], stop: tuple[str, ...], roles: tuple[str, ...]
) -> Between:
    """What stands between turns, checked. Raises ConfigError when the chat template cannot go on after a turn."""
    if roles and tokenizer.prompt_format != "chat":
        raise ConfigError(
            f"the environment answers in messages ({', '.join(roles)}), and data.prompt_format is text.",
            hint="take data.prompt_format = chat, or an environment that answers with text alone (roles = ()).",
        )
    obstacles = {role: _obstacle(tokenizer.tokenizer, role) for role in roles}
    if told := next(filter(None, obstacles.values()), ""):
        hint = "model.chat_template names another template; environments say in `roles` what they answer as."
        raise ConfigError(f"{told}.", hint=hint)
    stop_token_ids = stop_tokens(tokenizer.tokenizer, stop) if stop else ()
    return Between(tokenizer, end_token_ids, stop, stop_token_ids, _special(tokenizer.tokenizer), obstacles)


def _special(tokenizer: Any) -> re.Pattern[str] | None:
    texts = {str(token) for token in tokenizer.all_special_tokens}
    texts |= {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    longest_first = sorted((text for text in texts if len(text) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _obstacle(tokenizer: Any, role: str) -> str:
    """Why the conversation cannot go on with a message of that role, in words; "" when it can."""
    if role == "assistant":
        return "messages of role 'assistant' are the policy's own"
    answer = "Bandersnatch"
    try:
        tails = [_tail(tokenizer, [(role, answer)], says=says) for says in _what_it_says(tokenizer)]
    except ValueError as error:
        return f"the chat template cannot go on with a message of role {role!r}: {error}"
    left_out = not all(answer in tail for tail in tails)
    return f"the chat template leaves out messages of role {role!r}" if left_out else ""


def _what_it_says(tokenizer: Any) -> list[str]:
    """What an assistant may say where the template lets it begin: a word, and a thought before it unless the template
    has closed the thinking already; nothing but a thought where it has opened it."""
    begun = _rendered(tokenizer, [QUESTION]).rstrip()
    if begun.endswith(OPENING.rstrip()):
        return [THOUGHT]
    return [WORD] if begun.endswith("</think>") else [WORD, THOUGHT]


def _tail(tokenizer: Any, messages: Sequence[Message], *, says: str) -> str:
    """What the template writes behind the assistant's words. Raises ValueError, in words that end a sentence."""
    before = _rendered(tokenizer, [QUESTION]).rstrip()
    whole = _rendered(tokenizer, [QUESTION, ("assistant", says), *messages])
    if WORD not in whole:
        raise ValueError("it leaves out what the assistant said")
    drawn = says.removeprefix(OPENING) if before.endswith(OPENING.rstrip()) else says
    place = whole.find(drawn)
    # Space around the joint is not looked at: some templates write it, and some leave it to the policy.
    if place < 0 or whole[:place].rstrip() != before:
        what = "thinking" if says == THOUGHT else "turns"
        raise ValueError(f"it writes earlier {what} anew when the next message comes, so that past tokens would change")
    return whole[place + len(drawn) :]


def _rendered(tokenizer: Any, conversation: Sequence[Message]) -> str:
    """Up to where the assistant's next turn begins."""
    messages = [{"role": role, "content": text} for role, text in conversation]
    try:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except _template_errors() as error:
        raise ValueError(f"it raises {type(error).__name__}: {error}") from error
    return text


def _template_errors() -> tuple[type[Exception], ...]:
    """What a template may raise: it is a program."""
    import jinja2

    return (jinja2.TemplateError, ArithmeticError, TypeError, ValueError, AttributeError, LookupError)


def stop_tokens(tokenizer: Any, stop: Sequence[str]) -> tuple[int, ...]:
    """Every token with which a text can come to end in one of the stop texts: it ends in one, or is the end of one.

    Raises ConfigError when there is none.
    """
    texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
    # A token of half a character has no text of its own; it is tried with every stop text that is not ASCII.
    halves = not all(text.isascii() for text in stop)

    def may_end(text: str) -> bool:
        return any(text.endswith(each) or each.endswith(text) for each in stop) or (halves and "\ufffd" in text)

    found = tuple(i for i, text in enumerate(texts) if text and may_end(text))
    if not found:
        raise ConfigError(f"no token of the model can end a text in {' or '.join(map(repr, stop))}.")
    return found
