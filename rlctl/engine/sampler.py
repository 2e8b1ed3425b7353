"""Group sampling with continuous batching: one prefill a prompt, n rows that share it, exact draws.

    waiting   [prompt 5][prompt 6]...
    running   prompt 1: row row row row      one token of every row a step; a row that ends leaves,
              prompt 3: row row              and a waiting prompt enters with all its rows as soon as
              prompt 4: row row row row      there is room, so that a long answer holds nobody up

What a sample draws is a function of its own seed and position alone (`seeds.py`), so the schedule changes no result
beyond rounding. A row reserves memory for its longest possible completion before it starts: nothing is ever evicted.

Letters: G prompts, n rows a prompt, B live rows, V vocabulary, D hidden width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlctl import seeds
from rlctl.engine import kernels
from rlctl.engine.abandoning import must_go_on, never
from rlctl.engine.attention import PackedLayout, during
from rlctl.engine.decode import DecodeStep, KvCache, KvShape
from rlctl.engine.decode_step import LlamaStep
from rlctl.engine.draw import draw
from rlctl.engine.model import Policy
from rlctl.engine.packing import pack_prompts
from rlctl.engine.prepacked import Prepacked, pays, prepacked_linears
from rlctl.errors import BackendError, NonFinite
from rlctl.types import Completion, GenerateStats, Prompt, Sampling

_Head = Callable[[Tensor], Tensor]

PREFILL_TOKENS = 4096
"""Prompt tokens in one prefill pass: enough to fill the device, few enough that activations stay small."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What sampling may hold at a time."""

    kv_cache_bytes: float
    max_num_seqs: int
    abandoned: Callable[[], bool] = never
    """Asked before every token; true ends the call with Abandoned."""


GroupEnded = Callable[[int, list[Completion]], None]
"""(the group's place among the prompts, its completions)"""


def generate(
    policy: Policy,
    prompts: Sequence[Prompt],
    *,
    n: int,
    sampling: Sampling,
    end_token_ids: Sequence[int],
    limits: Limits,
    group_ended: GroupEnded | None = None,
) -> tuple[list[list[Completion]], GenerateStats]:
    """`n` completions a prompt, [G][n], and what they cost; `group_ended` is told of each group when it has ended.

    Raises BackendError when not even one group fits.
    """
    start = time.perf_counter()
    if not prompts:
        return [], GenerateStats()
    run = _Run(policy, prompts, n=n, sampling=sampling, end_token_ids=end_token_ids, limits=limits)
    run.group_ended = group_ended
    with torch.inference_mode(), ExitStack() as stack:
        head = run.prepare(stack)
        run.sample(head)
    completions = run.completions()
    tokens = sum(len(c.token_ids) for group in completions for c in group)
    return completions, GenerateStats(flops=run.flops, seconds=time.perf_counter() - start, tokens=tokens)


def kv_shape(policy: Policy) -> KvShape:
    """What the model keeps of one token."""
    config = policy.causal_lm.config.get_text_config()  # type: ignore[operator, union-attr]
    return KvShape(
        layers=config.num_hidden_layers,
        heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        width=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
    )


@dataclass(frozen=True, slots=True)
class Room:
    """Slots of the cache; more groups than fill the rows, since a group holds its prompt until its last row ends."""

    rows: int
    groups: int


def room(
    *, prompt_tokens: int, new_tokens: int, num_prompts: int, n: int, bytes_per_token: int, limits: Limits
) -> Room:
    """As many whole groups as the limits allow, every row counted at its full length. Raises BackendError below one."""
    tokens = limits.kv_cache_bytes / bytes_per_token
    group = n * new_tokens
    if group + prompt_tokens > tokens:
        needed, given = (x / 2**30 for x in ((group + prompt_tokens) * bytes_per_token, limits.kv_cache_bytes))
        raise BackendError(
            f"the keys and values of one group take {needed:.3g} GiB ({n} samples of {new_tokens} tokens after a "
            f"prompt of {prompt_tokens}), local.kv_cache_gb is {given:.3g}.",
            hint=f"raise local.kv_cache_gb to at least {needed * 1.05:.2g}, or lower rollout.n or "
            "rollout.max_response_length.",
        )
    running = int(min(num_prompts, tokens // (group + 2 * prompt_tokens), limits.max_num_seqs // n))
    if running < 1:
        return Room(rows=n, groups=1)
    return Room(rows=running * n, groups=min(num_prompts, 2 * running))


@dataclass
class _Rows:
    """The rows that run, by slot of the cache: which they are, and how far. All [B]."""

    number: np.ndarray[tuple[int], np.dtype[np.int64]]
    seeds: np.ndarray[tuple[int], np.dtype[np.uint64]]
    drawn: np.ndarray[tuple[int], np.dtype[np.int64]]

    def __getitem__(self, order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> _Rows:
        return _Rows(self.number[order], self.seeds[order], self.drawn[order])

    def __add__(self, other: _Rows) -> _Rows:
        return _Rows(
            np.concatenate([self.number, other.number]),
            np.concatenate([self.seeds, other.seeds]),
            np.concatenate([self.drawn, other.drawn]),
        )


class _Run:
    """All prompts of one call, from the first prefill to the last end token."""

    def __init__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        *,
        n: int,
        sampling: Sampling,
        end_token_ids: Sequence[int],
        limits: Limits,
    ) -> None:
        self.policy, self.prompts, self.n, self.sampling = policy, prompts, n, sampling
        self.abandoned = limits.abandoned
        self.ends = np.array(sorted({*end_token_ids, *sampling.stop_token_ids}), dtype=np.int64)
        self.flops = 0.0
        self.fast_step: LlamaStep | None = None
        longest = max(len(prompt.token_ids) for prompt in prompts)
        # The last token of a completion is drawn, not computed.
        new_tokens = max(1, sampling.max_new_tokens - 1)
        shape = kv_shape(policy)
        space = room(
            prompt_tokens=longest,
            new_tokens=new_tokens,
            num_prompts=len(prompts),
            n=n,
            bytes_per_token=shape.bytes_per_token(policy.dtype),
            limits=limits,
        )
        self.cache = KvCache(
            shape=shape,
            rows=space.rows,
            groups=space.groups,
            prompt_tokens=longest,
            new_tokens=new_tokens,
            like=policy.head_weight.detach(),
        )
        self.waiting = list(range(len(prompts)))[::-1]
        self.rows = _Rows(np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.int64))
        num_rows = len(prompts) * n
        self.tokens = np.zeros((num_rows, sampling.max_new_tokens), dtype=np.int32)
        self.logprobs = np.zeros((num_rows, sampling.max_new_tokens), dtype=np.float32)
        self.lengths = np.zeros(num_rows, dtype=np.int64)
        self.ended = np.zeros(num_rows, dtype=bool)
        self.running = np.full(len(prompts), n, dtype=np.int64)
        """Rows of each group that have not ended."""
        self.group_ended: GroupEnded | None = None

    def prepare(self, stack: ExitStack) -> _Head:
        """Rearrange the weights where that pays, until the stack closes; gives the output head."""
        policy, rows = self.policy, self.cache.max_rows
        stack.enter_context(prepacked_linears(policy.causal_lm.base_model, rows=rows))  # type: ignore[arg-type]
        elementwise = kernels.elementwise(policy.dtype)
        if policy.llama is not None and elementwise is not None:
            self.fast_step = LlamaStep(policy.llama, elementwise)
        if pays(policy.head_weight):
            return Prepacked(policy.head_weight, policy.head_bias, rows=rows)
        return policy.logits

    def sample(self, head: _Head) -> None:
        hidden_BD = self._admitted()
        while len(self.rows.number):
            must_go_on(self.abandoned)
            tokens_B = self._draw(head(hidden_BD))
            tokens_B = self._drop_finished(tokens_B)
            parts = [self._decode(tokens_B)] if len(tokens_B) else []
            hidden_BD = torch.cat([*parts, self._admitted()])

    def _admitted(self) -> Tensor:
        """Let waiting prompts in while there is room; hidden states that predict their rows' first tokens."""
        entering: list[int] = []
        rows, groups = self.cache.free_rows, len(self.cache.free_groups)
        while self.waiting and len(entering) < groups and (len(entering) + 1) * self.n <= rows:
            entering.append(self.waiting.pop())
        # Neighbours of like length waste the least on padding inside attention.
        entering.sort(key=lambda g: len(self.prompts[g].token_ids))
        hidden = [self._prefill(part) for part in _passes(entering, self.prompts)]
        return torch.cat(hidden) if hidden else self.policy.head_weight.new_empty(0, self.policy.head_weight.shape[1])

    def _prefill(self, entering: Sequence[int]) -> Tensor:
        policy, n = self.policy, self.n
        batch = pack_prompts([self.prompts[g].token_ids for g in entering])
        layout = PackedLayout(batch, device=policy.device, keep_prompt_kv=True)
        ids, positions = (torch.from_numpy(x).to(policy.device)[None] for x in (batch.ids_S, batch.positions_S))
        last = torch.from_numpy(np.cumsum(batch.prompt_lengths_G) - 1).to(policy.device)
        with during(layout) as handle:
            hidden_GD = policy.hidden(ids, positions, handle)[0, last]
        assert layout.prompt_kv is not None
        self.cache.enter(layout.prompt_kv, batch.prompt_lengths_G.tolist(), n=n)
        self.rows += _Rows(
            number=np.array([g * n + i for g in entering for i in range(n)]),
            seeds=np.array(
                [seeds.sample_seed(self.prompts[g].seed, i) for g in entering for i in range(n)], dtype=np.uint64
            ),
            drawn=np.zeros(len(entering) * n, dtype=np.int64),
        )
        self._count(tokens=len(batch.ids_S), predicted=len(entering), pairs=batch.attention_pairs)
        return hidden_GD.repeat_interleave(n, 0)

    def _draw(self, logits_BV: Tensor) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Next token of every row, written down."""
        rows = self.rows
        drawn, logp = draw(logits_BV, seeds.uniforms(rows.seeds, rows.drawn), self.sampling)
        tokens, logprobs = drawn.cpu().numpy(), logp.cpu().numpy()
        if not np.isfinite(logprobs).all():
            raise NonFinite("the model's logits are infinite or not a number.", hint="lower trainer.lr.")
        self.tokens[rows.number, rows.drawn] = tokens
        self.logprobs[rows.number, rows.drawn] = logprobs
        rows.drawn = rows.drawn + 1
        return tokens

    def _drop_finished(
        self, tokens_B: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Write down the rows that are complete and free their slots; gives the tokens of the others."""
        ended = np.isin(tokens_B, self.ends)
        done = ended | (self.rows.drawn == self.sampling.max_new_tokens)
        if not done.any():
            return tokens_B
        self.lengths[self.rows.number[done]] = self.rows.drawn[done]
        self.ended[self.rows.number[ended]] = True
        self._tell_of_groups(self.rows.number[done] // self.n)
        order = self.cache.leave(done)
        self.rows = self.rows[order]
        return tokens_B[order]

    def _decode(self, tokens_B: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Tensor:
        step = DecodeStep(self.cache)
        ids, positions = (
            torch.from_numpy(np.ascontiguousarray(x)).to(self.policy.device) for x in (tokens_B, step.positions_B)
        )
        if self.fast_step is not None:
            hidden = self.fast_step(ids, positions, step)
        else:
            with during(step) as handle:
                hidden = self.policy.hidden(ids[:, None], positions[:, None], handle)[:, 0]
        self._count(tokens=len(tokens_B), predicted=len(tokens_B), pairs=int(step.positions_B.sum()) + len(tokens_B))
        return hidden

    def _tell_of_groups(self, groups_of_done: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Count rows that are done, by their groups, and tell of the groups that now are."""
        np.subtract.at(self.running, groups_of_done, 1)
        if self.group_ended is not None:
            for group in np.unique(groups_of_done[self.running[groups_of_done] == 0]):
                self.group_ended(int(group), self._completions_of(int(group)))

    def completions(self) -> list[list[Completion]]:
        return [self._completions_of(group) for group in range(len(self.prompts))]

    def _completions_of(self, group: int) -> list[Completion]:
        return [
            Completion(
                self.tokens[i, : self.lengths[i]].copy(),
                self.logprobs[i, : self.lengths[i]].copy(),
                "stop" if self.ended[i] else "length",
            )
            for i in range(group * self.n, (group + 1) * self.n)
        ]

    def _count(self, *, tokens: int, predicted: int, pairs: int) -> None:
        shape = self.policy.shape
        self.flops += (
            float("nan") if shape is None else shape.forward_flops(tokens=tokens, predicted=predicted, pairs=pairs)
        )


def _passes(entering: Sequence[int], prompts: Sequence[Prompt]) -> Iterator[list[int]]:
    """The prompts in runs of at most PREFILL_TOKENS tokens, at least one prompt each."""
    part: list[int] = []
    tokens = 0
    for g in entering:
        length = len(prompts[g].token_ids)
        if part and tokens + length > PREFILL_TOKENS:
            yield part
            part, tokens = [], 0
        part.append(g)
        tokens += length
    if part:
        yield part
