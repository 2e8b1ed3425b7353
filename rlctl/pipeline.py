"""Sampling ahead of training: batches of coming steps are drawn while the present one is learnt from.

With `trainer.max_off_policy_steps` = k the sampler gets the trainer's policy after every k-th step, when both sides
stand still, and draws k batches from it while the trainer works through those of the policy before:

    k = 1    sampler   1 2 | 3 | 4 | 5 |           k = 2    sampler   1 2 3 | 4 5 | 6 7 |
             trainer     1 | 2 | 3 | 4 |                    trainer     1 2 | 3 4 | 5 6 |        | is a publication

So step s learns from the policy after step k * floor((s - 2) / k), and never less than the first: at most k steps older
than the one that is updated, at least one. It takes the longer of sampling and training, not their sum. Which policy a
batch is from follows from its step alone, whatever takes how long: a seed gives one run. Batches that are drawn and not
yet learnt from are part of a checkpoint.

A larger k evens out steps of different lengths and publishes less often. The schedule is that of one-step-off training
(https://arxiv.org/abs/2410.18252), with publications k steps apart.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from rlctl.feed import Feed
from rlctl.grpo import Sampled
from rlctl.step_report import Overlap, StepReport


@dataclass(frozen=True, slots=True)
class Drawn:
    """A batch that is drawn, where its data stood before and after, and from which policy it is."""

    sampled: Sampled
    policy_version: int
    before: Sequence[int]
    after: Sequence[int]
    """Cursors of the feed."""

    @property
    def staleness(self) -> int:
        """Steps between its policy and the one that its step updates."""
        return self.sampled.step - 1 - self.policy_version


Draw = Callable[[int, int], Awaitable[Sampled]]
"""(step, policy version) -> its batch, from what the feed gives next."""
Learn = Callable[[Sampled], Coroutine[Any, Any, StepReport]]
Publish = Callable[[StepReport], Awaitable[StepReport]]


class Pipeline:
    """The batches that are ahead of their step, and the task that draws more."""

    def __init__(self, feed: Feed, *, most: int, total: int, draw: Draw, learn: Learn, publish: Publish) -> None:
        """`most` is the staleness allowed, `total` the last step. What is drawn is taken from `feed`."""
        self.feed, self.most, self.total = feed, most, total
        self.draw, self.learn, self.publish = draw, learn, publish
        self.ready: deque[Drawn] = deque()
        self.published = 0
        """Steps that the sampler's policy has been trained for."""
        self._drawing: asyncio.Task[None] | None = None
        self._before: Sequence[int] | None = None
        """Where the data stood before the batch that is being drawn."""
        self._drawn = asyncio.Event()
        self._clock = Clock()

    async def step(self, step: int) -> StepReport:
        """Learn from the batch of a step, and draw later ones beside it. What one side raises ends the other."""
        self._clock.begin()
        try:
            self._begin_drawing(step)
            report = await self._beside_drawing(self._learnt(step))
            due = step % self.most == 0 or step == self.total
            if due:
                await self.settle()
            report = replace(report, overlap=self._clock.lap())
            if due:
                report = await self.publish(report)
                self.published = step
        except BaseException:
            await self.stop()
            raise
        self.ready.popleft()
        return report

    async def settle(self) -> None:
        """Wait for what the sampler may draw before the next publication; then it stands still."""
        if self._drawing is not None:
            await asyncio.shield(self._drawing)

    async def stop(self) -> None:
        """Cut off what is being drawn; batches that are drawn already stay."""
        drawing, self._drawing = self._drawing, None
        if drawing is not None:
            drawing.cancel()
            await asyncio.gather(drawing, return_exceptions=True)

    @property
    def behind(self) -> Sequence[int]:
        """Cursors of the data before all that is ahead of its step."""
        if self.ready:
            return self.ready[0].before
        return self.feed.cursors if self._before is None else self._before

    def rewind(self) -> None:
        """Put the data to where the last batch that is drawn has left it."""
        if self.ready:
            self.feed.cursors = list(self.ready[-1].after)

    def resume(self, drawn: Sequence[Drawn], *, published: int) -> None:
        """Go on with batches of a checkpoint, as far as they are not staler than this run allows."""
        self.published = published
        for each in drawn:
            if each.staleness > self.most:
                return
            self.ready.append(each)
        self.rewind()

    async def drop(self, *, published: int) -> None:
        """Forget what is drawn, since the policy it came from is: the data goes back to before it."""
        await self.stop()
        self.feed.cursors = list(self.behind)
        self.ready.clear()
        self.published = published

    def _begin_drawing(self, step: int) -> None:
        """Draw until the last batch that may come of the policy published before `step`."""
        if self._drawing is not None and not self._drawing.done():
            return
        last = min(self.total, (step - 1) // self.most * self.most + self.most + 1)
        self._drawing = asyncio.create_task(self._draw_until(last, first=step + len(self.ready)))

    async def _draw_until(self, last: int, *, first: int) -> None:
        try:
            for step in range(first, last + 1):
                self.ready.append(await self._next(step))
                self._drawn.set()
        finally:
            self._drawn.set()

    async def _next(self, step: int) -> Drawn:
        """The batch of a step; where that fails, its problems are given back."""
        before = self._before = list(self.feed.cursors)
        try:
            with self._clock.at_work("sampling"):
                sampled = await self.draw(step, self.published)
        except BaseException:
            self.feed.cursors = before
            raise
        finally:
            self._before = None
        return Drawn(sampled, self.published, before, list(self.feed.cursors))

    async def _learnt(self, step: int) -> StepReport:
        while not self.ready:
            self._drawn.clear()
            await self._drawn.wait()
        assert self.ready[0].sampled.step == step
        with self._clock.at_work("training"):
            return await self.learn(self.ready[0].sampled)

    async def _beside_drawing(self, work: Coroutine[Any, Any, StepReport]) -> StepReport:
        """What the work gives; raises what drawing raises meanwhile, and ends the work then."""
        assert self._drawing is not None
        learning = asyncio.create_task(work)
        running: set[asyncio.Task[Any]] = {learning, self._drawing}
        try:
            while not learning.done():
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if self._drawing in done:
                    self._drawing.result()
            return learning.result()
        finally:
            learning.cancel()
            await asyncio.gather(learning, return_exceptions=True)


@dataclass
class Clock:
    """Seconds in which each of two sides, or both, were at work since `begin`."""

    now: Callable[[], float] = time.perf_counter
    _busy: set[str] = field(default_factory=set)
    _seconds: dict[frozenset[str], float] = field(default_factory=dict)
    _since: float = 0.0

    def begin(self) -> None:
        self._turn()
        self._seconds = {}

    def _turn(self) -> None:
        """Add the seconds since the last turn to those of the sides that were at work."""
        now, busy = self.now(), frozenset(self._busy)
        self._seconds[busy] = self._seconds.get(busy, 0.0) + now - self._since
        self._since = now

    @contextmanager
    def at_work(self, side: str) -> Iterator[None]:
        self._turn()
        self._busy.add(side)
        try:
            yield
        finally:
            self._turn()
            self._busy.discard(side)

    def lap(self) -> Overlap:
        self._turn()
        of = {side: sum(s for busy, s in self._seconds.items() if side in busy) for side in ("sampling", "training")}
        both = self._seconds.get(frozenset(of), 0.0)
        return Overlap(sum(self._seconds.values()), of["sampling"], of["training"], both)
