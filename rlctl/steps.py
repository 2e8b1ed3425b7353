"""The steps of a run: each sampled and then learnt from, or sampled ahead (`pipeline.py`), and the data they take.

`loop.py` asks for one step after the other, and for where the data stands; how they overlap is decided here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlctl import grpo
from rlctl.backends.base import AnyBackend
from rlctl.grpo import Sampled
from rlctl.outcome import Meter
from rlctl.perf import Stopwatch
from rlctl.pipeline import Drawn, Pipeline
from rlctl.prepare import Prepared, feed_of
from rlctl.recipe import grpo_config, learning_rate
from rlctl.report import Metrics
from rlctl.rollouts import Groups, More, Score
from rlctl.step_report import Refused, StepReport


class Steps:
    """Takes steps. `pipeline` is None where sampling and training take turns."""

    def __init__(
        self,
        prepared: Prepared,
        backend: AnyBackend,
        *,
        score: Score,
        refused: Callable[[int, Refused], Awaitable[None]],
    ) -> None:
        """`refused` is told the step of each update that was not taken."""
        self.prepared, self.settings, self.backend = prepared, prepared.settings, backend
        self.score, self.refused = score, refused
        self.config, self.total = grpo_config(prepared.settings), prepared.geometry.steps
        self.feed = feed_of(prepared)
        self.task = prepared.rewards.rewards[0].name
        self.meter: Meter | None = None
        self._untold: list[Groups] = []
        """Of steps that the curriculum has not been told of."""
        self.pipeline: Pipeline | None = None
        if most := self.settings.trainer.max_off_policy_steps:
            self.pipeline = Pipeline(
                self.feed, most=most, total=self.total, draw=self._draw, learn=self._learn, publish=self._publish
            )

    async def take(self, step: int) -> StepReport:
        """The next step, from its problems to the policy it makes."""
        if self.pipeline is not None:
            return await self.pipeline.step(step)
        return await grpo.grpo_step(
            step,
            self.feed.batch(step),
            backend=self.backend,
            tokenizer=self.prepared.tokenizer,
            score=self.score,
            player=self.prepared.player,
            config=self.config,
            lr=learning_rate(self.settings, step, total=self.total),
            more=self._more(step),
            refused=lambda refused: self.refused(step, refused),
            watch=self.meter.stopwatch() if self.meter else None,
        )

    async def _draw(self, step: int, policy_version: int) -> Sampled:
        sampler = grpo.sampler_of(
            self.config,
            backend=self.backend,
            tokenizer=self.prepared.tokenizer,
            score=self.score,
            watch=Stopwatch(),
            player=self.prepared.player,
            policy_version=policy_version,
        )
        problems, refills = self.feed.batch(step), self.config.max_refills
        return await grpo.sample(step, problems, sampler=sampler, more=self._more(step), max_refills=refills)

    async def _learn(self, sampled: Sampled) -> StepReport:
        step = sampled.step
        return await grpo.learn(
            sampled,
            backend=self.backend,
            config=self.config,
            lr=learning_rate(self.settings, step, total=self.total),
            refused=lambda refused: self.refused(step, refused),
            watch=Stopwatch(),
        )

    async def _publish(self, learnt: StepReport) -> StepReport:
        return await grpo.publish(learnt, backend=self.backend, watch=Stopwatch())

    def _more(self, step: int) -> More | None:
        return (lambda count: self.feed.more(step, count)) if self.settings.algorithm.filter_groups else None

    @property
    def kl_coef(self) -> float | None:
        """The weight that KL off the reward has in the next step; None where nothing steers it."""
        return self.config.advantage.kl_coef if self.config.advantage.kl_control is not None else None

    def weigh_kl(self, coef: float | None) -> None:
        """Go on with that weight; None, or settings by which nothing steers it, leaves it as it is."""
        if self.kl_coef is not None and coef is not None:
            self.config = replace(self.config, advantage=replace(self.config.advantage, kl_coef=coef))

    def learnt(self, done: StepReport) -> Metrics:
        """Steer the weight of KL, let the curriculum know what the groups taught, and say how many problems rest.

        While batches are being drawn the curriculum is not told: which problems they have must not depend on what takes
        how long. The weight of KL meets a batch when it is learnt from, and so knows of all steps before.
        """
        control = self.config.advantage.kl_control
        if control is not None and done.kl_in_reward is not None:
            self.weigh_kl(control.steered(done.kl_in_reward.coef, done.kl_in_reward))
        if self.feed.curriculum is None:
            return {}
        self._untold.append([list(group) for group in done.groups])
        if self.pipeline is None or self.pipeline.published == done.step:
            self._tell()
        return dict(self.feed.curriculum.metrics())

    def _tell(self) -> None:
        untold, self._untold = self._untold, []
        for groups in untold:
            assert self.feed.curriculum is not None
            self.feed.curriculum.record(groups, task=self.task)

    async def settle(self) -> None:
        """Wait until nothing is drawn any more, before a checkpoint."""
        if self.pipeline is not None:
            await self.pipeline.settle()
            self._tell()

    async def meet(self, step: int) -> None:
        """Settle, and bring the sampler to the policy of the step, to be evaluated."""
        if self.pipeline is not None and self.pipeline.published != step:
            await self.settle()
            await self.backend.sync_weights()
            self.pipeline.published = step

    async def stop(self) -> None:
        """Cut off what is being drawn."""
        if self.pipeline is not None:
            await self.pipeline.stop()
            self._tell()

    async def drop(self, *, done: int) -> None:
        """Forget what is drawn, before the weights of a checkpoint are taken in place of those it came from."""
        if self.pipeline is not None:
            await self.pipeline.drop(published=done)
            self._tell()

    @property
    def ahead(self) -> Sequence[Drawn]:
        """Batches that are drawn and not learnt from."""
        return tuple(self.pipeline.ready) if self.pipeline is not None else ()

    def data(self) -> dict[str, Any]:
        """Where the data stands, before what is ahead."""
        return self.feed.state_dict(at=self.pipeline.behind if self.pipeline is not None else None)

    def go_back(self, data: Mapping[str, Any]) -> None:
        """The data stands there again, behind it what is ahead."""
        self.feed.load_state_dict(data)
        if self.pipeline is not None:
            self.pipeline.rewind()

    def resume(self, data: Mapping[str, Any], ahead: Sequence[Drawn], *, done: int) -> None:
        """Go on after step `done`, with what was ahead of it."""
        self.feed.load_state_dict(data)
        if self.pipeline is not None:
            self.pipeline.resume(ahead, published=done)
