"""Rules that the peers share: batches, the pairs of numbers that rlctl keeps as one, sampling, warm-up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rlctl.peers.book import Book
from rlctl.peers.entries import Unresolved, shown
from rlctl.peers.findings import Effect, Group

BIASED = {"rollout.top_p": 1.0, "rollout.top_k": -1, "rollout.min_p": 0.0}
"""Filters of sampling, and the value at which each is off."""


@dataclass(frozen=True, slots=True)
class Batches:
    """What a peer does with the samples of one sampling phase; `mini` is in prompts and may be no whole number."""

    prompts: Fraction
    mini: Fraction
    how: str


def batches(book: Book, keys: Sequence[str], *, sizes: Batches) -> int | None:
    """Set the batch and the mini-batch; the number of updates a step makes of it, or None where rlctl cannot.

    A mini-batch that is no whole number of prompts, or does not divide the batch, is left out: rlctl then makes one
    update of the batch, which is told as a change of the result.
    """
    prompts, mini, how = sizes.prompts, sizes.mini, sizes.how
    if prompts.denominator != 1 or prompts < 1:
        book.invalid(
            keys, f"{how} = {_shown(prompts)} prompts, no whole number of groups; {book.peer.title} refuses it"
        )
        return None
    size = int(prompts)
    if mini > prompts:
        book.invalid(keys, f"a mini-batch of {_shown(mini)} prompts is larger than the batch of {size}")
        return None
    if mini.denominator != 1 or size % int(mini):
        book.put(
            Group.MEANING,
            keys,
            f"{how}; {book.peer.title} updates on {_shown(mini)} prompts at a time, and rlctl needs whole groups that "
            f"divide the batch: one update on all {size} is made instead",
            {"trainer.train_batch_size": size},
            effect=Effect.RESULT,
        )
        return None
    settings: dict[str, Any] = {"trainer.train_batch_size": size}
    if mini != prompts:
        settings["trainer.mini_batch_size"] = int(mini)
    book.exact(keys, how, settings)
    return size // int(mini)


def _shown(number: Fraction) -> str:
    return str(number) if number.denominator == 1 else f"{float(number):g}"


def pair(book: Book, keys: tuple[str, str], *, setting: str) -> None:
    """Two numbers of the peer that are one list of rlctl's."""
    if not book.waits(keys) and all(book.value(key) is not None for key in keys):
        book.exact(keys, "", {setting: [book.value(key) for key in keys]})


def sampling(book: Book, settings: Mapping[str, tuple[str, Any]]) -> None:
    """top_p, top_k and min_p, by rlctl's names: (peer's key, value). Any that is on needs rlctl's opt-in."""
    on = {name: value for name, (_, value) in settings.items() if value is not None and value != BIASED[name]}
    for name, (key, value) in settings.items():
        if isinstance(value, Unresolved):
            book.waits([key])
        elif name in on:
            book.meaning(
                [key],
                "the ratio is taken on the whole distribution, so a filter biases it; rlctl wants it confirmed",
                {name: value, "rollout.allow_biased_sampling": True},
            )
        elif value is not None:
            book.exact([key], "off", {name: BIASED[name]})


def warmup(book: Book, keys: Sequence[str], *, ratio: float | None, steps: float | None, total: int | None) -> None:
    """The warm-up, as a share or as a number of steps of the peer's schedule; `total` is its length."""
    first = "the peer's first update has a learning rate of 0, rlctl's is the first step up"
    if steps:
        if not total:
            book.missing(
                keys, f"{steps:g} steps of warm-up: rlctl takes a share, and the number of steps is not in the file"
            )
        else:
            book.meaning(
                keys, f"{steps:g} of {total} steps; {first}", {"trainer.warmup_ratio": share(int(steps), total)}
            )
    elif ratio:
        book.meaning(keys, first, {"trainer.warmup_ratio": ratio})
    else:
        book.exact(keys, "no warm-up", {"trainer.warmup_ratio": 0.0})


def share(steps: int, total: int) -> float:
    """A warmup_ratio of which rlctl, which rounds up, makes exactly so many steps."""
    ratio = steps / total
    return ratio if math.ceil(ratio * total) == steps else (steps - 0.5) / total


def group_size(book: Book, keys: Sequence[str], *, size: int | None) -> int | None:
    """Completions a prompt. One has no siblings: rlctl refuses it, and its own default would be another run."""
    if book.waits(keys):
        return None
    if size is None or size < 2:
        value = shown(book.value(keys[0]))
        book.missing(
            keys,
            f"a group of {value} has nothing to be compared with, and rlctl needs at least 2; set rollout.n yourself",
        )
        return None
    book.exact(keys, "completions a prompt", {"rollout.n": size})
    return size
