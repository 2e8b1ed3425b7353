"""What stands between two turns: the chat template's own tokens, exactly once, or a refusal before the run."""

from __future__ import annotations

import pytest

from rlctl.environments.between import between_of, stop_tokens
from rlctl.errors import ConfigError
from rlctl.tokenizer import ChatTokenizer
from tests.tiny import END, byte_tokenizer

TURNS = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ m['content'] }}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
"""Strips the thinking of past turns, as many reasoning models' templates do."""
NUMBERED = TURNS.replace("{{ m['role'] }}", "{{ m['role'] }} {{ messages|length }}")
DEAF = (
    "{% for m in messages %}{% if m['role'] != 'tool' %}<|start|>{{ m['content'] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>{% endif %}"
)
STRICT = "{% if messages|length > 2 %}{{ raise_exception('roles must alternate') }}{% endif %}" + TURNS


def tokenizer(template: str) -> ChatTokenizer:
    return ChatTokenizer(byte_tokenizer(template))


def test_the_policys_own_end_token_is_not_written_twice() -> None:
    made = tokenizer(TURNS)
    between = between_of(made, end_token_ids=(END,), stop=(), roles=("user", "tool"))
    rest = made.tokenizer("\n<|start|>tool\n42<|end|>\n<|start|>assistant\n", add_special_tokens=False)["input_ids"]
    assert between.message_ids([("tool", "42")], last=END) == rest
    # Cut before its end, a turn gets the template's, which the policy did not write.
    assert between.message_ids([("tool", "42")], last=ord("x")) == [END, *rest]


def test_joined_ids_are_those_of_the_whole_conversation() -> None:
    made = tokenizer(TURNS)
    between = between_of(made, end_token_ids=(END,), stop=(), roles=("user",))
    conversation = [("user", "Hi."), ("assistant", "Yes?"), ("user", "No."), ("user", "But.")]
    messages = [{"role": role, "content": text} for role, text in conversation]
    whole = made.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    start = made.tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    said = made.tokenizer("Yes?<|end|>", add_special_tokens=False)["input_ids"]
    joined = [
        *made.tokenizer(start, add_special_tokens=False)["input_ids"],
        *said,
        *between.message_ids(conversation[2:], last=END),
    ]
    assert joined == made.tokenizer(whole, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (FORGETFUL, "writes earlier thinking anew when the next message comes, so that past tokens would change"),
        (NUMBERED, "writes earlier turns anew"),
        (DEAF, "leaves out messages of role 'tool'"),
        (STRICT, "it raises TemplateError: roles must alternate"),
        ("{% for m in messages %}{% endfor %}", "leaves out what the assistant said"),
    ],
)
def test_a_template_that_cannot_go_on_is_refused_before_the_run(template: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        between_of(tokenizer(template), end_token_ids=(END,), stop=(), roles=("tool",))
    assert "model.chat_template" in caught.value.hint


def test_a_role_that_was_not_spoken_of_is_tried_when_it_comes() -> None:
    between = between_of(tokenizer(DEAF), end_token_ids=(END,), stop=(), roles=("user",))
    assert [*b"go"] == between.message_ids([("developer", "go")], last=END)[1:3]
    for _ in range(2):
        with pytest.raises(ValueError, match="the chat template leaves out messages of role 'tool'"):
            between.message_ids([("user", "hm"), ("tool", "42")], last=END)


def test_nobody_speaks_in_the_policys_name() -> None:
    between = between_of(tokenizer(TURNS), end_token_ids=(END,), stop=(), roles=("user",))
    with pytest.raises(ValueError, match="messages of role 'assistant' are the policy's own"):
        between.message_ids([("assistant", "I give up.")], last=END)
    with pytest.raises(ConfigError, match="messages of role 'assistant' are the policy's own"):
        between_of(tokenizer(TURNS), end_token_ids=(END,), stop=(), roles=("assistant",))


def test_a_template_that_forgets_may_go_on_with_text() -> None:
    assert between_of(tokenizer(FORGETFUL), end_token_ids=(END,), stop=(), roles=()).stop == ()


def test_messages_need_a_chat_format() -> None:
    plain = ChatTokenizer(byte_tokenizer(), prompt_format="text")
    with pytest.raises(ConfigError, match=r"answers in messages \(user\), and data\.prompt_format is text"):
        between_of(plain, end_token_ids=(END,), stop=(), roles=("user",))
    assert between_of(plain, end_token_ids=(END,), stop=(), roles=()).text_ids("é") == [0xC3, 0xA9]


def test_every_token_that_can_end_a_stop_text_may_end_a_turn() -> None:
    class Words:
        """A vocabulary of words."""

        words = ("<", "</", "/", "a>", ">", "</a>", "x</a>", "</a>x", "", "a", "\ufffd")

        def __len__(self) -> int:
            return len(self.words)

        def batch_decode(self, ids: list[list[int]]) -> list[str]:
            return [self.words[i] for (i,) in ids]

    found = [Words.words[i] for i in stop_tokens(Words(), ["</a>"])]
    assert found == ["a>", ">", "</a>", "x</a>"]
    assert [Words.words[i] for i in stop_tokens(Words(), ["é", "a"])] == ["a", "\ufffd"]
    with pytest.raises(ConfigError, match="no token of the model can end a text in '%'"):
        stop_tokens(Words(), ["%"])


def test_a_text_goes_on_without_the_space_that_some_tokenizers_put_first() -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [("<unk>", 0.0), ("▁", -2.0), ("1", -3.0), ("7", -3.0), (">", -3.0), ("\n", -3.0)]
    made = Tokenizer(models.Unigram(pieces, unk_id=0))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    made.decoder = decoders.Metaspace(prepend_scheme="always")
    fast = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    assert fast("17>", add_special_tokens=False)["input_ids"] == [1, 2, 3, 4]
    between = between_of(ChatTokenizer(fast, prompt_format="text"), end_token_ids=(0,), stop=(), roles=())
    assert between.text_ids("17>") == [2, 3, 4]


# The three ways in which reasoning models' templates treat thinking; {opened} is what a new turn begins with.
REASONING = (
    "{{% set ns = namespace(last=0) %}}"
    "{{% for m in messages %}}{{% if m['role'] == 'user' %}}"
    "{{% set ns.last = loop.index0 %}}{{% endif %}}{{% endfor %}}"
    "{{% for m in messages %}}<|start|>{{{{ m['role'] }}}}\n"
    "{{% set said = m['content'].split('</think>')[-1].lstrip('\n') %}}"
    "{{% if m['role'] != 'assistant' %}}{{{{ m['content'] }}}}"
    "{{% elif loop.index0 < ns.last %}}{{{{ said }}}}"
    "{{% elif '</think>' in m['content'] %}}{{{{ m['content'] }}}}"
    "{{% else %}}{without}{{{{ said }}}}{{% endif %}}<|end|>\n{{% endfor %}}"
    "{{% if add_generation_prompt %}}<|start|>assistant\n{opened}{{% endif %}}"
)
EMPTY = "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("opened", "without"), [("", ""), ("<think>\n", EMPTY), (EMPTY, EMPTY)], ids=["may think", "must", "must not"]
)
def test_thinking_is_kept_before_tools_and_not_before_questions(opened: str, without: str) -> None:
    made = tokenizer(REASONING.format(opened=opened, without=without))
    between = between_of(made, end_token_ids=(END,), stop=(), roles=("tool",))
    ids = between.message_ids([("tool", "42")], last=END)
    assert made.tokenizer.decode(ids) == f"\n<|start|>tool\n42<|end|>\n<|start|>assistant\n{opened}"
    with pytest.raises(ConfigError, match=r"role 'user': it writes earlier (thinking|turns) anew"):
        between_of(made, end_token_ids=(END,), stop=(), roles=("user",))
