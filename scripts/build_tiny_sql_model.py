"""Build the tiny text-to-SQL model: `python scripts/build_tiny_sql_model.py` writes rlctl/embedded/tiny-sql/.

The model exists so that `rlctl train --preset bird-grpo --variant embedded` shows reinforcement learning that is real
and fits a laptop's CPU. It is made as its sibling is (see build_tiny_model.py): correct demonstrations first, from
which it learns to read a schema and to write the query, then demonstrations of which a share (`SLIP_SHARE`) contain one
slip: a wrong column, value, table, operator or aggregate, or an answer whose thinking or fence is never closed. The
reward tells the two apart; nothing in the weights or in the prompt does.

Demonstrations are about databases of the train split only; GRPO then draws other questions about the same databases,
and is evaluated on databases it has never seen, which share their words.
On two CPU cores this takes about ten minutes. Everything is drawn from `SEED`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from build_tiny_model import END, model_of, save, schedule, tokenizer_of
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from rlctl.backends.local.backend import LocalBackend
from rlctl.rewards.sql.guard import named
from rlctl.settings import Settings
from rlctl.text_to_sql.databases import Database, Split, database, database_path
from rlctl.text_to_sql.prompt import prompt_text
from rlctl.text_to_sql.questions import Asked, asked_of
from rlctl.text_to_sql.schema import Detail, schema_text
from rlctl.types import Problem, TrainRow

OUTPUT = Path(__file__).resolve().parent.parent / "rlctl" / "embedded" / "tiny-sql"
SEED = 20_260_214
"""Seed of the weights, of the demonstrations and of their slips. Far from the small seeds that runs use."""
MEASURE_SEED = SEED + 1

DETAIL = Detail(sample_rows=0, example_values=0, descriptions=False, foreign_keys=False, compact=True)
"""The schema as the preset's embedded variant asks for it; the model knows prompts in no other form."""

CORRECT_STEPS = 450
SLIPPING_STEPS = 140
BATCH_SIZE = 40
PEAK_LR = 4e-3
SLIPPING_LR = 8e-4
SLIP_SHARE = 0.62
MAX_NEW_TOKENS = 72


def main() -> None:
    options = _options()
    torch.manual_seed(SEED)
    tokenizer = build_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        untrained = Path(folder) / "untrained"
        sizes = {"hidden_size": 128, "intermediate_size": 224, "num_attention_heads": 4}
        save(model_of(tokenizer, **sizes), tokenizer, folder=untrained)
        trained = asyncio.run(train(untrained, tokenizer, options, folder=Path(folder) / "trained"))
        model = Qwen3ForCausalLM.from_pretrained(trained, dtype=torch.float32)
    model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    save(model, tokenizer, folder=options.out)
    print(f"{measure(model.float(), tokenizer):.3f} right at temperature 1, on databases it has never seen")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Build the embedded tiny text-to-SQL model.")
    parser.add_argument("--out", type=Path, default=OUTPUT, help="folder to write")
    parser.add_argument("--steps", type=int, default=CORRECT_STEPS, help="updates on correct demonstrations")
    parser.add_argument("--slipping-steps", type=int, default=SLIPPING_STEPS, help="updates on the ones with slips")
    return parser.parse_args()


def build_tokenizer() -> PreTrainedTokenizerFast:
    return tokenizer_of(_texts(num_problems=3000), vocab_size=640, context=512)


def _texts(num_problems: int) -> Iterator[str]:
    for index in range(num_problems):
        number, asked = asked_of(SEED, index, split="train")
        yield f"system\nuser\n{prompt(number, asked)}assistant\n{answer(asked.plan, asked.sql)}"


def prompt(number: int, asked: Asked) -> str:
    """The user's message, as a run of the embedded variant sends it."""
    problem = Problem("", asked.question, asked.sql, extra={"evidence": asked.evidence})
    return prompt_text(problem, schema_text(str(database_path(number)), DETAIL), compact=True)


def answer(plan: str, sql: str) -> str:
    return f"<think>\n{plan}\n</think>\n```sql\n{sql}\n```"


async def train(
    untrained: Path, tokenizer: PreTrainedTokenizerFast, options: argparse.Namespace, *, folder: Path
) -> Path:
    """Both stages of supervised training, on rlctl's own engine: the gradient of GRPO's loss on a demonstration whose
    advantage is 1, before any update, is that of its log-likelihood."""
    # One thread: the products of a model of that size are too small to share.
    local = {"dtype": "float32", "num_threads": 1}
    settings = Settings(model={"path": str(untrained)}, trainer={"betas": (0.9, 0.95)}, local=local)
    job = settings.job(model=str(untrained), end_token_ids=(tokenizer.eos_token_id,))
    backend = LocalBackend(settings.local, replace(job, max_prompt_length=128, max_response_length=128))
    await backend.start()
    started = time.monotonic()
    for steps, peak_lr, slips in (
        (options.steps, PEAK_LR, False),
        (options.slipping_steps, SLIPPING_LR, True),
    ):
        for step in range(steps):
            first = step * BATCH_SIZE + (CORRECT_STEPS * BATCH_SIZE if slips else 0)
            rows = [_row(tokenizer, index, slips=slips) for index in range(first, first + BATCH_SIZE)]
            tokens = float(sum(len(row.completion_ids) for row in rows))
            loss = await backend.forward_backward(rows, loss=settings.loss(), loss_denominator=tokens)
            await backend.optim_step(peak_lr * schedule(step, steps))
            if step % 50 == 49:
                surprise = _mean_surprise(await backend.log_probs(rows))
                told = f"step {step + 1}/{steps}  {surprise:.4f} nats a token, {loss.tokens} tokens a step"
                print(f"{told}  {time.monotonic() - started:.0f} s", flush=True)
    await backend.save(folder)
    await backend.close()
    return folder


def _mean_surprise(log_probs: Sequence[np.ndarray]) -> float:
    return float(-np.concatenate(log_probs).mean())


def _row(tokenizer: PreTrainedTokenizerFast, index: int, *, slips: bool) -> TrainRow:
    """Demonstration number `index`, as a completion with advantage 1."""
    number, asked = asked_of(SEED, index, split="train")
    text = demonstration(asked, database(number), index=index) if slips else answer(asked.plan, asked.sql)
    prompt_ids = np.asarray(encode_prompt(tokenizer, number, asked), np.int32)
    answer_ids = np.asarray(tokenizer.encode(text + END, add_special_tokens=False), np.int32)
    return TrainRow(prompt_ids, answer_ids, 1.0, np.zeros(len(answer_ids), np.float32))


def encode_prompt(tokenizer: PreTrainedTokenizerFast, number: int, asked: Asked) -> list[int]:
    messages = [{"role": "user", "content": prompt(number, asked)}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(text, add_special_tokens=False))


def demonstration(asked: Asked, made: Database, *, index: int) -> str:
    """The answer, with a slip in it for a `SLIP_SHARE` of the indices."""
    rng = random.Random(f"sql-slips/{SEED}/{index}")
    if rng.random() >= SLIP_SHARE:
        return answer(asked.plan, asked.sql)
    if rng.random() < 0.2:
        whole = answer(asked.plan, asked.sql)
        return rng.choice((whole.replace("</think>\n", ""), whole.removesuffix("\n```"), whole.replace("```sql\n", "")))
    return answer(asked.plan, _slipped(asked.sql, made, rng))


def _slipped(sql: str, made: Database, rng: random.Random) -> str:
    """The query with one of its words replaced by another of its kind."""
    words = sql.split(" ")
    kinds = _kinds(made)
    places = [(at, kind) for at, word in enumerate(words) for kind in kinds if _bare(word) in kind]
    at, kind = rng.choice(places)
    other = rng.choice([word for word in kind if word != _bare(words[at])])
    words[at] = words[at].replace(_bare(words[at]), other)
    return " ".join(words)


def _bare(word: str) -> str:
    """The name, value or keyword in a word, without what SQL puts around it."""
    inner = word.rpartition("(")[2].strip(",)") if "(" in word and not word.startswith("COUNT") else word.strip(",")
    return inner.partition("(")[0] if word.startswith("COUNT") else inner


def _kinds(made: Database) -> list[list[str]]:
    """Words that can be mistaken for one another: columns, tables, operators, values, directions."""
    columns = [named(column.name) for column in made.child.columns]
    tables = [named(made.parent.name), named(made.child.name)]
    values = [
        f"'{value}'"
        for table in (made.parent, made.child)
        for column in table.all("category")
        for value in sorted({str(value) for value in table.values(column)})
    ]
    return [columns, tables, ["<", ">"], ["ASC", "DESC"], values]


@torch.no_grad()
def measure(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, *, num_problems: int = 256, split: Split = "eval"
) -> float:
    """Share of fresh problems answered by the gold's very text at temperature 1: 0..1, a lower bound of the score."""
    model.eval()
    correct = 0
    for first in range(0, num_problems, 128):
        chosen = [asked_of(MEASURE_SEED, index, split=split) for index in range(first, first + 128)]
        prompts = [encode_prompt(tokenizer, number, asked) for number, asked in chosen]
        longest = max(map(len, prompts))
        ids = torch.tensor([[tokenizer.pad_token_id] * (longest - len(one)) + one for one in prompts])
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
        sampled = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=MAX_NEW_TOKENS
        )
        texts = tokenizer.batch_decode(sampled[:, longest:], skip_special_tokens=True)
        correct += sum(f"```sql\n{asked.sql}\n```" in text for text, (_, asked) in zip(texts, chosen, strict=True))
    return correct / num_problems


if __name__ == "__main__":
    main()
