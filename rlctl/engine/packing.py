"""Rows -> micro-batches in which every prompt stands once: the shared-prefix packing.

A micro-batch is one sequence of tokens without padding: first the prompts of its groups, then all
completions, each with positions that continue its own prompt. `attention.py` lets a completion see its
prompt and itself, so the n completions of a prompt share one computation of it.

Tokens that an environment wrote stand in the sequence, where later ones see them, but nothing predicts them: they are
among S and not among T, so no loss, entropy or log-prob is ever taken of one.

Letters: G groups (distinct prompts), R rows, S tokens of the sequence, T completion tokens that the policy wrote,
P longest prompt, C longest completion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlctl.types import PolicyMask, TokenIds, TrainRow

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows with one prompt; `rows` are positions in the list that was packed."""

    prompt_ids: TokenIds
    rows: tuple[int, ...]
    completions: tuple[TokenIds, ...]
    masks: tuple[PolicyMask | None, ...]
    """Which tokens of each completion the policy wrote; None is all."""

    @property
    def tokens(self) -> int:
        return len(self.prompt_ids) + sum(map(len, self.completions))


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One micro-batch as plain arrays; every index points into the sequence of S tokens."""

    rows: tuple[int, ...]
    """[R] positions of its rows in the list that was packed."""
    ids_S: Index
    positions_S: Index
    prompt_index_GP: Index
    """Where each prompt's tokens stand; padded with 0 on the right."""
    prompt_lengths_G: Index
    completion_index_RC: Index
    """Where each completion's tokens stand; padded with 0 on the right."""
    completion_lengths_R: Index
    written_lengths_R: Index
    """How many of them the policy wrote, which are the ones among T."""
    group_of_row_R: Index
    predictors_T: Index
    """The token whose hidden state predicts each token that the policy wrote: the one before it."""
    targets_T: Index
    row_of_token_T: Index

    @property
    def attention_pairs(self) -> int:
        """Pairs (query, key) with key not after query that are computed, each prompt once."""
        prompts = self.prompt_lengths_G
        own = self.completion_lengths_R
        shared = own * prompts[self.group_of_row_R] if len(own) else np.zeros(0, dtype=np.int64)
        return int((prompts * (prompts + 1) // 2).sum() + shared.sum() + (own * (own + 1) // 2).sum())


def pack(rows: Sequence[TrainRow], *, max_tokens: int) -> list[PackedBatch]:
    """Micro-batches of at most `max_tokens` tokens each; one row alone may exceed it."""
    groups = _groups_by_prompt(rows)
    pieces = [piece for group in groups for piece in _split(group, max_tokens)]
    # Neighbours of like length waste the least on padding inside attention.
    pieces.sort(key=lambda piece: max(map(len, piece.completions)))
    return [pack_groups(batch) for batch in _filled(pieces, max_tokens)]


def _groups_by_prompt(rows: Sequence[TrainRow]) -> list[Group]:
    members: dict[bytes, list[int]] = {}
    for position, row in enumerate(rows):
        members.setdefault(row.prompt_ids.tobytes(), []).append(position)
    return [
        Group(
            rows[positions[0]].prompt_ids,
            tuple(positions),
            tuple(rows[i].completion_ids for i in positions),
            tuple(rows[i].policy_mask for i in positions),
        )
        for positions in members.values()
    ]


def _split(group: Group, max_tokens: int) -> Iterator[Group]:
    """The group in pieces that fit the budget, each with its own copy of the prompt."""
    start, used = 0, len(group.prompt_ids)
    for position, completion in enumerate(group.completions):
        if position > start and used + len(completion) > max_tokens:
            yield _piece(group, start, position)
            start, used = position, len(group.prompt_ids)
        used += len(completion)
    yield _piece(group, start, len(group.rows))


def _piece(group: Group, start: int, end: int) -> Group:
    return Group(group.prompt_ids, group.rows[start:end], group.completions[start:end], group.masks[start:end])


def _filled(pieces: Sequence[Group], max_tokens: int) -> Iterator[list[Group]]:
    batch: list[Group] = []
    for piece in pieces:
        if batch and sum(group.tokens for group in batch) + piece.tokens > max_tokens:
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def pack_prompts(prompts: Sequence[TokenIds]) -> PackedBatch:
    """Prompts alone, for the prefill of a sampler."""
    return pack_groups([Group(prompt, (), (), ()) for prompt in prompts])


def pack_groups(groups: Sequence[Group]) -> PackedBatch:
    """One micro-batch of these groups."""
    prompts = [group.prompt_ids for group in groups]
    completions = [completion for group in groups for completion in group.completions]
    written = _joined_masks([mask for group in groups for mask in group.masks], completions)
    group_of_row = np.repeat(np.arange(len(groups)), [len(group.completions) for group in groups])
    prompt_lengths, own_lengths = _lengths(prompts), _lengths(completions)
    num_prompt_tokens = int(prompt_lengths.sum())
    prompt_index = _padded_index(prompt_lengths, first=0)
    own_index = _padded_index(own_lengths, first=num_prompt_tokens)
    within = _arange_each(own_lengths)
    row_of_token = np.repeat(np.arange(len(completions)), own_lengths)
    prompt_ends = np.cumsum(prompt_lengths) - 1
    own = num_prompt_tokens + np.arange(int(own_lengths.sum()))
    predictors = np.where(within == 0, prompt_ends[group_of_row[row_of_token]], own - 1)
    own_positions = prompt_lengths[group_of_row[row_of_token]] + within
    return PackedBatch(
        rows=tuple(row for group in groups for row in group.rows),
        ids_S=_joined([*prompts, *completions]),
        positions_S=np.concatenate([_arange_each(prompt_lengths), own_positions]),
        prompt_index_GP=prompt_index,
        prompt_lengths_G=prompt_lengths,
        completion_index_RC=own_index,
        completion_lengths_R=own_lengths,
        written_lengths_R=np.bincount(row_of_token[written], minlength=len(completions)),
        group_of_row_R=group_of_row,
        predictors_T=predictors[written],
        targets_T=_joined(completions)[written],
        row_of_token_T=row_of_token[written],
    )


def _lengths(arrays: Sequence[TokenIds]) -> Index:
    return np.fromiter(map(len, arrays), dtype=np.int64, count=len(arrays))


def _joined(arrays: Sequence[TokenIds]) -> Index:
    return np.concatenate([np.asarray(a, dtype=np.int64) for a in arrays]) if arrays else np.zeros(0, dtype=np.int64)


def _joined_masks(masks: Sequence[PolicyMask | None], completions: Sequence[TokenIds]) -> PolicyMask:
    whole = [np.ones(len(c), dtype=bool) if m is None else m for m, c in zip(masks, completions, strict=True)]
    return np.concatenate(whole) if whole else np.zeros(0, dtype=bool)


def _arange_each(lengths: Index) -> Index:
    """0..length-1 for each length, joined."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(starts, lengths)


def _padded_index(lengths: Index, *, first: int) -> Index:
    """[rows, longest] positions of consecutive runs that begin at `first`; 0 in the padding."""
    width = int(lengths.max(initial=0))
    starts = first + np.cumsum(lengths) - lengths
    column = np.arange(width)
    return np.where(column < lengths[:, None], starts[:, None] + column, 0)
