"""Build the embedded tiny model: `python scripts/build_tiny_model.py` writes rlctl/embedded/tiny/.

The model exists so that `rlctl train --preset gsm8k-grpo --variant embedded` shows reinforcement learning that is
real and fits a laptop's CPU. It is a Qwen3-architecture transformer of 1.3 M parameters with a tokenizer of its
own, trained from scratch, under supervision, on the train split of `rlctl.problems`, in two stages:

1. correct demonstrations, from which it learns to read a story, to pick the operation and to calculate;
2. demonstrations of which a share (`SLIP_SHARE`) contain exactly one slip, as real text does: a wrong result,
   the wrong operation, the wrong number of the story, or an answer given one step too early. What follows
   a slip is consistent with it.

The second stage is why there is something to reinforce. A language model imitates the good and the bad alike, so
at temperature 1 this one solves less than half of the problems, though it has learnt enough to solve most. The
reward of GRPO tells the two apart; nothing in the weights or in the prompt does.

Problems of the eval split are never trained on, and neither are their calculations (see `rlctl.problems`). The seed
of the demonstrations is apart from those of runs, but the train split is finite: 3 % of the questions that GRPO draws
from it occurred in the demonstrations, and 91 % of their calculations did. So scores on it run some points ahead of
those on the eval split, and only the latter show what was learnt.
On two CPU cores this takes about ten minutes. Everything is drawn from `SEED`, and torch runs deterministic algorithms,
so that the same machine builds the same bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from rlctl.problems import (
    LARGEST_NUMBER,
    Equation,
    Operator,
    Story,
    calculate,
    solve,
    story_of,
    word_problem,
    worked_answer,
    written_answer,
)

OUTPUT = Path(__file__).resolve().parent.parent / "rlctl" / "embedded" / "tiny"
SUFFIX = 'Let\'s think step by step and output the final answer after "####".'
"""What the GSM8K presets append to a question, after a space; the model knows prompts in no other form."""

SEED = 20_250_601
"""Seed of the weights, of the demonstrations and of their slips. Far from the small seeds that runs use."""
MEASURE_SEED = SEED + 1
"""Seed of the eval-split problems on which accuracy is measured."""

CORRECT_STEPS = 1000
SLIPPING_STEPS = 120
BATCH_SIZE = 64
PEAK_LR = 4e-3
SLIPPING_LR = 1e-3
WARMUP_STEPS = 50
SLIP_SHARE = 0.62
"""Share of second-stage demonstrations with a slip; accuracy at temperature 1 ends near 1 minus this."""

MAX_NEW_TOKENS = 60
"""The longest worked answer has 51 tokens with the end token."""
IGNORED = -100
"""The label that transformers' loss leaves out."""

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens in the vocabulary")
    train(model, tokenizer, steps=options.steps, slips=False)
    print(f"after correct demonstrations: {measure(model, tokenizer):.3f} at temperature 1")
    if options.keep_stage:
        save(model, tokenizer, folder=options.keep_stage)
    train(model, tokenizer, steps=options.slipping_steps, slips=True)
    round_to_bfloat16(model)
    accuracy = measure(model, tokenizer)
    print(f"after demonstrations with slips: {accuracy:.3f} at temperature 1")
    save(model, tokenizer, folder=options.out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Build the embedded tiny model.")
    parser.add_argument("--out", type=Path, default=OUTPUT, help="folder to write")
    parser.add_argument("--steps", type=int, default=CORRECT_STEPS, help="updates on correct demonstrations")
    parser.add_argument("--slipping-steps", type=int, default=SLIPPING_STEPS, help="updates on the ones with slips")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads; the bytes may depend on their number")
    parser.add_argument("--keep-stage", type=Path, help="also write the model as it is after the first stage")
    return parser.parse_args()


def build_tokenizer() -> PreTrainedTokenizerFast:
    # More than there are merges to learn: every frequent word becomes one token.
    return tokenizer_of(_texts(num_problems=3000), vocab_size=1024, context=1024)


def tokenizer_of(texts: Iterator[str], *, vocab_size: int, context: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE learnt from texts: any UTF-8 text comes back unchanged, and every digit is a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in (PAD, START, END)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=context,
    )


def _texts(num_problems: int) -> Iterator[str]:
    for index in range(num_problems):
        problem = word_problem(SEED, index, split="train")
        yield f"system\nuser\n{problem.question} {SUFFIX}assistant\n{problem.answer}"


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Wide and shallow: on a CPU, three layers of 192 cost less time than six of 128, and calculate as well."""
    return model_of(tokenizer, hidden_size=192, intermediate_size=512, num_attention_heads=6)


def model_of(tokenizer: PreTrainedTokenizerFast, **sizes: int) -> Qwen3ForCausalLM:
    """A random model of three layers with two key heads, for that tokenizer's context."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        num_hidden_layers=3,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=tokenizer.model_max_length,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
        **sizes,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=1.0
    )
    return model


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, *, steps: int, slips: bool) -> None:
    """One stage of supervised training; the loss counts the answer's tokens only."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.01)
    peak_lr = SLIPPING_LR if slips else PEAK_LR
    model.train()
    started = time.monotonic()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = peak_lr * schedule(step, steps)
        first = step * BATCH_SIZE + (CORRECT_STEPS * BATCH_SIZE if slips else 0)
        batch = _batch(tokenizer, range(first, first + BATCH_SIZE), slips=slips)
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 49:
            print(f"step {step + 1}/{steps}  loss {loss.item():.4f}  {time.monotonic() - started:.0f} s", flush=True)


def schedule(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine to a hundredth: 0..1."""
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    return warmup * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def _batch(tokenizer: PreTrainedTokenizerFast, indices: Sequence[int], *, slips: bool) -> dict[str, torch.Tensor]:
    """Demonstrations number `indices`, padded on the right."""
    rows = []
    for index in indices:
        story = story_of(SEED, index, split="train")
        answer = demonstration(story, index=index) if slips else worked_answer(story.steps)
        prompt_ids = encode_prompt(tokenizer, story.question)
        answer_ids = tokenizer.encode(answer + END, add_special_tokens=False)
        rows.append((prompt_ids + answer_ids, [IGNORED] * len(prompt_ids) + answer_ids))
    longest = max(len(ids) for ids, _ in rows)
    padding = [longest - len(ids) for ids, _ in rows]
    return {
        "input_ids": torch.tensor(
            [ids + [tokenizer.pad_token_id] * pad for (ids, _), pad in zip(rows, padding, strict=True)]
        ),
        "labels": torch.tensor([labels + [IGNORED] * pad for (_, labels), pad in zip(rows, padding, strict=True)]),
    }


def encode_prompt(tokenizer: PreTrainedTokenizerFast, question: str) -> list[int]:
    """The prompt as a run sends it: question, a space, SUFFIX, in the chat template."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": f"{question} {SUFFIX}"}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer.encode(text, add_special_tokens=False))


def demonstration(story: Story, *, index: int) -> str:
    """The worked answer, with a slip in it for a `SLIP_SHARE` of the indices."""
    rng = random.Random(f"slips/{SEED}/{index}")
    if rng.random() >= SLIP_SHARE:
        return worked_answer(story.steps)
    while True:
        answer = _slipped(story, rng)
        if answer is not None and _final(answer) != _final(worked_answer(story.steps)):
            return answer


def _slipped(story: Story, rng: random.Random) -> str | None:
    """The answer with one slip of a random kind, or None where that would leave the range of numbers."""
    kind = rng.choice(("result", "operator", "operand", "early"))
    if kind == "early":
        return written_answer(story.steps[:1], equations=solve(story.steps)[:1])
    slip_at = rng.randrange(len(story.steps))
    equations: list[Equation] = []
    for position, step in enumerate(story.steps):
        previous = equations[-1].result if equations else 0
        left = previous if step.left is None else step.left
        right = previous if step.right is None else step.right
        operator = step.operator
        if position == slip_at and kind == "operand":
            right = rng.choice(_numbers(story.question))
        if position == slip_at and kind == "operator":
            operator = rng.choice(_OTHER_OPERATORS[operator])
        result = calculate(left, operator, right)
        if position == slip_at and kind == "result":
            result += rng.choice((-10, -2, -1, 1, 2, 10))
        if not 0 < result <= LARGEST_NUMBER:
            return None
        equations.append(Equation(left, operator, right, result))
    return written_answer(story.steps, equations=equations)


_OTHER_OPERATORS: dict[Operator, tuple[Operator, ...]] = {"+": ("-",), "-": ("+",), "*": ("+",), "/": ("*", "-")}


def _numbers(question: str) -> list[int]:
    return [int(word) for word in question.replace(".", " ").split() if word.isdigit()]


def _final(answer: str) -> str:
    return answer.rpartition("####")[2].strip()


@torch.no_grad()
def measure(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, *, num_problems: int = 1024) -> float:
    """Share of fresh eval-split problems answered right at temperature 1, one completion each: 0..1."""
    model.eval()
    correct = 0
    for first in range(0, num_problems, 256):
        problems = [word_problem(MEASURE_SEED, index, split="eval") for index in range(first, first + 256)]
        prompts = [encode_prompt(tokenizer, problem.question) for problem in problems]
        longest = max(map(len, prompts))
        ids = torch.tensor([[tokenizer.pad_token_id] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        sampled = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=MAX_NEW_TOKENS
        )
        texts = tokenizer.batch_decode(sampled[:, longest:], skip_special_tokens=True)
        correct += sum(_final(text) == _final(problem.answer) for text, problem in zip(texts, problems, strict=True))
    return correct / num_problems


def round_to_bfloat16(model: Qwen3ForCausalLM) -> None:
    """Round the weights but keep them float32: exact in either type, and half the size once compressed."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).to(torch.float32)


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, *, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # transformers 5 writes a class name that transformers 4 does not know; both know this one.
    settings_path = folder / "tokenizer_config.json"
    settings = json.loads(settings_path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings_path.write_text(json.dumps(settings, indent=2) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors writes files that only their owner can read
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size_bytes / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
