"""Chapter 2: a run from start to close: steps, evaluations, checkpoints, and an orderly end.

Ctrl-C or SIGTERM finishes the step, saves, and ends with 130 or 143; a second one ends at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from rlctl import checkpoint, grpo, report
from rlctl.backends import registry
from rlctl.backends.base import AnyBackend
from rlctl.errors import CheckpointError, NonFiniteGradient
from rlctl.evaluation import evaluate
from rlctl.grpo import GrpoConfig
from rlctl.prepare import Prepared, epoch_of, feed_of
from rlctl.report import Metrics
from rlctl.rewards import Scored, score
from rlctl.rollouts import Sampler
from rlctl.runfiles import RunFiles
from rlctl.settings import Settings
from rlctl.types import BackendInfo, StepReport


class Reporter(Protocol):
    """Whoever shows a run: a terminal, plain lines, nobody."""

    def started(self, prepared: Prepared, info: BackendInfo) -> None: ...
    def step(self, metrics: Metrics) -> None: ...
    def evaluation(self, step: int, metrics: Metrics) -> None: ...
    def note(self, text: str) -> None: ...
    def abort(self) -> None:
        """Leave the terminal as it was: the process is about to end."""


@dataclass
class Outcome:
    """What a run did. `interrupted` is the signal that ended it early."""

    info: BackendInfo
    reports: list[StepReport] = field(default_factory=list)
    metrics: list[Metrics] = field(default_factory=list)
    evaluations: list[tuple[int, Metrics]] = field(default_factory=list)
    checkpoint: Path | None = None
    interrupted: int | None = None

    @property
    def exit_code(self) -> int:
        return 128 + self.interrupted if self.interrupted else 0


class HasPolicy(Protocol):
    """What a backend is made from."""

    @property
    def settings(self) -> Settings: ...
    @property
    def model(self) -> str: ...
    @property
    def end_token_ids(self) -> tuple[int, ...]: ...


def backend_for(prepared: HasPolicy) -> AnyBackend:
    """The backend that the settings name, not started.

    Raises BackendNotFound, BackendUnavailable, and ConfigError where the backend cannot do what the settings ask.
    """
    settings = prepared.settings
    spec = registry.get(settings.backend)
    own = settings.local if settings.backend == "local" else settings.remote_backend[settings.backend]
    job = settings.job(model=prepared.model, end_token_ids=prepared.end_token_ids)
    # An evaluation updates nothing.
    plan = settings.plan(steps=prepared.geometry.steps) if isinstance(prepared, Prepared) else None
    backend: AnyBackend = spec.load("backend")(own, replace(job, plan=plan))
    return backend


async def run(
    prepared: Prepared,
    *,
    backend: AnyBackend,
    reporter: Reporter,
    files: RunFiles | None,
    keep_reports: bool = False,
    evaluate: bool = True,
) -> Outcome:
    """Train as the settings say; without `files` nothing is written. Raises RlctlError on the first failure."""
    with interruptible(reporter) as stop:
        try:
            info = await backend.start()
            if files:
                files.write_machine(info)
            reporter.started(prepared, info)
            outcome = Outcome(info)
            run_ = _Run(
                prepared, backend, reporter, files, outcome, stop, keep_reports=keep_reports, evaluates=evaluate
            )
            await run_.steps()
            return outcome
        finally:
            try:
                await backend.close()
            finally:
                await asyncio.to_thread(prepared.rewards.close)


@dataclass
class Stop:
    """The signal that asked the run to end, if one did."""

    signal: int | None = None


@contextmanager
def interruptible(reporter: Reporter) -> Iterator[Stop]:
    """The first SIGINT or SIGTERM asks for an orderly end, the second ends the process."""
    stop, loop = Stop(), asyncio.get_running_loop()

    def on(number: int) -> None:
        if stop.signal is not None:
            reporter.abort()
            os._exit(128 + number)
        stop.signal = number
        reporter.note(f"{signal.Signals(number).name}: finishing what is running and saving; once more ends at once")

    signals = (signal.SIGINT, signal.SIGTERM)
    try:
        for number in signals:
            loop.add_signal_handler(number, on, number)
    except (NotImplementedError, RuntimeError, ValueError):
        # Not the main thread, or a platform without it: whoever embeds the run handles signals.
        yield stop
        return
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


class _Run:
    """The state of a run between its steps."""

    def __init__(
        self,
        prepared: Prepared,
        backend: AnyBackend,
        reporter: Reporter,
        files: RunFiles | None,
        outcome: Outcome,
        stop: Stop,
        *,
        keep_reports: bool,
        evaluates: bool,
    ) -> None:
        self.prepared, self.backend, self.reporter, self.files = prepared, backend, reporter, files
        self.outcome, self.stop, self.keep_reports = outcome, stop, keep_reports
        self.settings: Settings = prepared.settings
        self.config = grpo_config(self.settings)
        self.feed = feed_of(prepared)
        self.task = prepared.rewards.rewards[0].name
        self.evaluates = evaluates and self.settings.trainer.eval_freq > 0 and bool(len(prepared.eval_problems))
        self.skipped_in_a_row = 0
        self.save_seconds = 0.0
        """Of the checkpoint written just before the current step."""

    async def steps(self) -> None:
        total = self.prepared.geometry.steps
        if self.evaluates:
            self._write(0, await self._evaluation(0))
        done = 0
        for step in range(1, total + 1):
            if self.stop.signal is not None:
                break
            await self._step(step, total)
            done = step
        self.outcome.interrupted = self.stop.signal
        if done:
            await self._save(done)

    async def _step(self, step: int, total: int) -> None:
        start = time.perf_counter()
        trainer = self.settings.trainer
        problems = self.feed.batch(step)
        done = await grpo.grpo_step(
            step,
            problems,
            backend=self.backend,
            tokenizer=self.prepared.tokenizer,
            score=self._score,
            config=self.config,
            lr=grpo.learning_rate(
                step,
                peak=trainer.lr,
                schedule=trainer.lr_schedule,
                warmup_ratio=trainer.warmup_ratio,
                total_steps=total,
            ),
            more=(lambda count: self.feed.more(step, count)) if self.settings.algorithm.filter_groups else None,
        )
        seconds = time.perf_counter() - start
        metrics = report.step_metrics(
            done, self.outcome.info, task=self.task, epoch=epoch_of(self.prepared, step), seconds=seconds
        )
        metrics |= self._curriculum(done)
        metrics["timing_s/save_checkpoint"] = self.save_seconds
        if self.keep_reports:
            self.outcome.reports.append(done)
        self.outcome.metrics.append(metrics)
        self.reporter.step(metrics)
        self._tell_of_failures(done)
        if self.evaluates and (step % trainer.eval_freq == 0 or step == total):
            metrics |= await self._evaluation(step)
        # Written before anything that may fail or be killed: this is the step that will be asked about.
        self._write(step, metrics)
        if self.files:
            self.files.write_samples(step, _spread(done, self.settings.run.samples_per_step))
        self._count_skipped(done)
        if trainer.save_freq and step % trainer.save_freq == 0 and step != total:
            await self._save(step)

    async def _score(self, items: Any) -> list[Scored]:
        return await score(self.prepared.rewards, items)

    async def _evaluation(self, step: int) -> Metrics:
        """Sample and score the evaluation problems, with the same random numbers every time; {} when interrupted."""
        start, settings = time.perf_counter(), self.settings
        sampler = Sampler(
            self.backend,
            self.prepared.tokenizer,
            self._score,
            n=settings.eval.n,
            sampling=settings.evaluation(),
            seed=settings.seed,
        )
        groups = await evaluate(sampler, self.prepared.eval_problems, stopped=lambda: self.stop.signal is not None)
        if len(groups) < len(self.prepared.eval_problems):
            return {}
        metrics = report.evaluation_metrics(groups, task=self.task, seconds=time.perf_counter() - start)
        self.outcome.evaluations.append((step, metrics))
        self.reporter.evaluation(step, metrics)
        return metrics

    def _curriculum(self, done: StepReport) -> Metrics:
        """Remember what the step's groups taught, and say how many problems rest."""
        if self.feed.curriculum is None:
            return {}
        self.feed.curriculum.record(done.groups, task=self.task)
        return dict(self.feed.curriculum.metrics())

    def _tell_of_failures(self, done: StepReport) -> None:
        failed = [rollout for rollout in done.rollouts if rollout.reward is None]
        if failed:
            kinds = ", ".join(f"{n} {kind}" for kind, n in report.failures_by_kind(failed).items() if n)
            left_out = f"{len(failed)} completions have no reward and are left out ({kinds})"
            self.reporter.note(f"step {done.step}: {left_out}: {failed[0].note}")
        if len(done.groups) > 1 and all(len({r.text for r in group}) == 1 for group in done.groups):
            self.reporter.note(f"step {done.step}: the completions of each prompt are all the same text")

    def _count_skipped(self, done: StepReport) -> None:
        """Raises NonFiniteGradient after too many updates in a row that were not stepped."""
        for update in done.updates:
            self.skipped_in_a_row = 0 if update.stepped else self.skipped_in_a_row + 1
            if not update.stepped:
                norm = f"the gradient's norm is {update.grad_norm}"
                self.reporter.note(f"step {done.step}: {norm}; this update was skipped")
            if self.skipped_in_a_row >= self.settings.trainer.max_skipped_updates:
                raise NonFiniteGradient(
                    f"the gradient was not finite {self.skipped_in_a_row} times in a row, last at step {done.step}.",
                    hint="lower trainer.lr, or look at samples.jsonl; checkpoints of earlier steps are untouched.",
                )

    async def _save(self, step: int) -> None:
        self.save_seconds = 0.0
        if not self.files:
            return
        start = time.perf_counter()
        try:
            self.outcome.checkpoint = await checkpoint.save(
                self.backend,
                self.prepared.tokenizer,
                folder=self.files.checkpoints,
                step=step,
                data_state=self.feed.state_dict(),
            )
        except CheckpointError:
            self.reporter.note(f"the run stops at step {step}, since it can no longer be saved")
            raise
        self.save_seconds = time.perf_counter() - start

    def _write(self, step: int, metrics: Metrics) -> None:
        if self.files:
            self.files.write_metrics({"training/global_step": step, **metrics})


def grpo_config(settings: Settings) -> GrpoConfig:
    """What a step needs to know of the settings."""
    return GrpoConfig(
        n=settings.rollout.n,
        sampling=settings.rollout.sampling(),
        loss=settings.loss(),
        mini_batch_size=settings.trainer.mini_batch_size or settings.trainer.train_batch_size,
        ppo_epochs=settings.trainer.ppo_epochs,
        norm_adv_by_std=settings.algorithm.norm_adv_by_std,
        drop_zero_signal_groups=settings.algorithm.drop_zero_signal_groups,
        always_score_before_update=settings.trainer.old_log_probs == "always",
        seed=settings.seed,
        max_refills=settings.algorithm.max_refills,
    )


def _spread(done: StepReport, count: int) -> list[Any]:
    """`count` rollouts spread evenly over the step's groups."""
    rollouts = done.rollouts
    stride = max(1, len(rollouts) // count) if count else 1
    return rollouts[::stride][:count]
