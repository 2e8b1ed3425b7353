"""Chapter 2: a run from start, or from where it was, to close: steps, evaluations, checkpoints, and an orderly end.

A step either is done, and then its numbers are in the logs and its weights may be saved, or it never was: a run that is
resumed computes it again, with the same numbers. How a run is asked to end is in `stopping.py`, how it is saved in
`checkpoints/`, what is waited for in `hangwatch.py`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from rlctl import report
from rlctl.backends.base import AnyBackend
from rlctl.backends.watched import Watched
from rlctl.checkpoints.saver import Saver
from rlctl.checkpoints.state import RunState, capture_generators, restore_generators, seed_generators
from rlctl.errors import CheckpointError, Interrupted, NonFinite
from rlctl.evaluation import evaluate
from rlctl.hangwatch import HangWatch
from rlctl.logs import strict
from rlctl.outcome import Meter, Outcome, Reporter
from rlctl.prepare import Prepared, epoch_of
from rlctl.recipe import backend_for, grpo_config, learning_rate, saver_for
from rlctl.report import Metrics
from rlctl.resuming import Resume, fingerprints
from rlctl.rewards import Scored, score
from rlctl.rollouts import Groups, Sampler
from rlctl.runfiles import STEP, RunFiles, spread
from rlctl.safeguard import Safeguard
from rlctl.settings import Settings
from rlctl.step_report import StepReport
from rlctl.steps import Steps
from rlctl.stopping import GivenUp, Stopping, leave_soon, limit_from, listening

__all__ = ["Outcome", "Reporter", "backend_for", "grpo_config", "run"]


async def run(
    prepared: Prepared,
    *,
    backend: AnyBackend,
    reporter: Reporter,
    files: RunFiles | None,
    resume: Resume | None = None,
    keep_reports: bool = False,
    evaluate: bool = True,
    meter: Meter | None = None,
) -> Outcome:
    """Train as the settings say; without `files` nothing is written. Raises RlctlError on the first failure."""
    limits = prepared.settings.run
    stopping = Stopping(limits.stop_grace_s, limit_from(prepared.settings.trainer.save_before))
    watch = HangWatch(
        notice_s=limits.stall_notice_s,
        timeout_s=limits.stall_timeout_s,
        note=reporter.note,
        file=files.folder / "stacks.txt" if files else None,
        stacks=backend.stacks,
    )
    reporter.follow(watch.waits)
    watched = Watched(backend, watch)
    with listening(stopping, note=reporter.note, leave=reporter.abort), watch.watching():
        try:
            seed_generators(prepared.settings.seed)
            outcome = Outcome(await _started(watched, stopping))
            if files:
                files.write_machine(outcome.info)
            reporter.started(prepared, outcome.info)
            run_ = _Run(
                prepared, watched, reporter, files, outcome, stopping, keep_reports=keep_reports, evaluates=evaluate
            )
            run_.steps.meter = meter
            await run_.all_steps(resume)
            return outcome
        finally:
            try:
                await watched.close()
            finally:
                await watch.until("the rewards to close", asyncio.to_thread(prepared.close))


async def _started(backend: Watched, stopping: Stopping) -> Any:
    try:
        return await stopping.guard(backend.start())
    except GivenUp:
        error = Interrupted("the run was asked to end while its backend was starting.", stopping.exit_code)
        # What a thread is loading cannot be ended.
        leave_soon(error.exit_code)
        raise error from None


class _Run:
    """The state of a run between its steps. `done` is the last step that is done."""

    def __init__(
        self,
        prepared: Prepared,
        backend: Watched,
        reporter: Reporter,
        files: RunFiles | None,
        outcome: Outcome,
        stopping: Stopping,
        *,
        keep_reports: bool,
        evaluates: bool,
    ) -> None:
        self.prepared, self.backend, self.reporter, self.files = prepared, backend, reporter, files
        self.outcome, self.stopping, self.keep_reports = outcome, stopping, keep_reports
        self.settings: Settings = prepared.settings
        self.task = prepared.rewards.rewards[0].name
        self.evaluates = evaluates and self.settings.trainer.eval_freq > 0 and bool(len(prepared.eval_problems))
        self.saver = saver_for(prepared, backend, files=files, note=reporter.note) if files else None
        self.safeguard = Safeguard(
            self.settings,
            backend,
            saver=self.saver,
            folder=files.folder / "dumps" if files else None,
            note=reporter.note,
        )
        self.steps = Steps(prepared, backend, score=self._score, refused=self.safeguard.keep)
        self.fingerprints = fingerprints(prepared)
        self.total = prepared.geometry.steps
        self.done = 0
        self.owed: Metrics | None = None
        """The metrics of the last step, while its evaluation, cut off by a signal, is still to be made."""
        self.metrics: Metrics = {}
        """Of the last step."""
        self.boundary: RunState | None = self._state()
        """Where the run stood after the last step; None once an update of the next has begun and was cut off."""

    async def all_steps(self, resume: Resume | None) -> None:
        try:
            await (self._go_on(resume) if resume else self._begin())
            while self.done < self.total and not self.stopping.must_end:
                await self._next_step()
            self.outcome.interrupted = self.stopping.signal
            self.outcome.out_of_time = self.done < self.total and self.stopping.out_of_time
            await self._save_at_end()
        finally:
            await self.steps.stop()
            if self.saver:
                await self.saver.settle()

    async def _begin(self) -> None:
        if self.evaluates and (evaluation := await self._evaluation(0)) is not None:
            self._write(0, evaluation)
        if self.safeguard.rolls_back and not self.stopping.must_end:
            await self._save()

    async def _go_on(self, resume: Resume) -> None:
        """Take up what the checkpoint holds, and make the evaluation that it owes."""
        state = resume.state
        self.steps.resume(state.data, state.ahead, done=state.step)
        self.steps.weigh_kl(resume.kl_coef)
        await self.backend.load(resume.held.folder)
        await self.backend.sync_weights()
        restore_generators(state.random)
        self.done = state.step
        self.safeguard.skipped_in_a_row, self.safeguard.rollbacks = state.skipped_in_a_row, state.rollbacks
        if self.files and self.saver:
            self.outcome.remember(self.files.records)
            self.saver.latest, self.saver.latest_step = resume.held.folder, state.step
        if state.owed is not None:
            metrics = dict(state.owed)
            self.outcome.metrics.append(metrics)
            await self._log(state.step, metrics)
        self.boundary = self._state()

    async def _next_step(self) -> None:
        step, begun, start = self.done + 1, self.backend.updates_begun, time.perf_counter()
        try:
            done = await self.stopping.guard(self.steps.take(step), give_up=lambda: self._may_give_up(begun))
        except GivenUp:
            await self._give_up(step, half_done=self.backend.updates_begun > begun)
            return
        except NonFinite as error:
            await self._roll_back(error)
            self._back_to_boundary()
            self.boundary = self._state()
            return
        seconds = time.perf_counter() - start
        self.stopping.longest_step_s = max(seconds, self.stopping.longest_step_s)
        await self._conclude(done, seconds - (self.steps.meter.spent() if self.steps.meter else 0.0))
        if self.saver:
            await self.saver.finish_if_done()
            if self._save_is_due(step):
                await self._save()

    async def _conclude(self, done: StepReport, seconds: float) -> None:
        """Measure, show, evaluate and log a step: from here on it is done."""
        step, epoch = done.step, epoch_of(self.prepared, done.step)
        metrics = report.step_metrics(done, self.outcome.info, task=self.task, epoch=epoch, seconds=seconds)
        metrics |= self.steps.learnt(done)
        metrics["timing_s/save_checkpoint"] = self.saver.spent() if self.saver else 0.0
        if self.safeguard.rolls_back:
            metrics["training/rollbacks"] = self.safeguard.rollbacks
        if self.keep_reports:
            self.outcome.reports.append(done)
        self.outcome.metrics.append(metrics)
        self.reporter.sampled(done.rollouts)
        self.reporter.step(metrics)
        for trouble in report.troubles(done):
            self.reporter.note(f"step {step}: {trouble}")
        await self._log(step, metrics)
        if self.files:
            self.files.write_samples(step, spread(done.rollouts, self.settings.run.samples_per_step))
        self.done = step
        try:
            self.safeguard.count(done)
        except NonFinite as error:
            await self._roll_back(error)
        self.boundary = self._state()

    async def _roll_back(self, error: NonFinite) -> None:
        await self.steps.drop(done=self.done)
        self.steps.weigh_kl((await self.safeguard.roll_back(error)).kl_coef)

    async def _log(self, step: int, metrics: Metrics) -> None:
        """Write a step's line, with its evaluation where one is due; a line whose evaluation is cut off is owed."""
        self.metrics, self.owed = metrics, None
        trainer = self.settings.trainer
        if self.evaluates and (step % trainer.eval_freq == 0 or step == self.total):
            evaluation = await self._evaluation(step)
            if evaluation is None:
                self.owed = strict(metrics)
                return
            metrics |= evaluation
        self._write(step, metrics)

    async def _score(self, items: Any) -> list[Scored]:
        return await self.backend.watch.until(
            f"the rewards of {len(items)} completions", score(self.prepared.rewards, items)
        )

    async def _evaluation(self, step: int) -> Metrics | None:
        """Sample and score the evaluation problems, with the same random numbers every time; None when cut off."""
        start, settings = time.perf_counter(), self.settings
        sampler = Sampler(
            self.backend,
            self.prepared.tokenizer,
            self._score,
            n=settings.eval.n,
            sampling=settings.evaluation(),
            seed=settings.seed,
            player=self.prepared.player,
        )
        problems = self.prepared.eval_problems
        self.reporter.evaluating(step)

        async def work() -> Groups:
            await self.steps.meet(step)
            return await evaluate(sampler, problems, stopped=lambda: self.stopping.must_end)

        try:
            groups = await self.stopping.guard(work(), give_up=lambda: self.stopping.must_end and self._abandon())
        except GivenUp:
            return None
        if len(groups) < len(problems):
            return None
        metrics = report.evaluation_metrics(groups, task=self.task, seconds=time.perf_counter() - start)
        self.outcome.evaluations.append((step, metrics))
        self.reporter.evaluation(step, metrics)
        for trouble in report.without_reward(rollout for group in groups for rollout in group):
            self.reporter.note(f"evaluation of step {step}: {trouble}")
        return metrics

    def _may_give_up(self, begun: int) -> bool:
        """Whether a step past its deadline is cut off: for the end always, for a save only if it can be done again."""
        if self.stopping.must_end:
            return self._abandon()
        return self.backend.updates_begun == begun and self.backend.abandon()

    def _abandon(self) -> bool:
        self.backend.abandon()
        return True

    async def _give_up(self, step: int, *, half_done: bool) -> None:
        if half_done:
            self.boundary = None
            self.reporter.note(f"step {step} was cut off between two updates; the last checkpoint stands")
            return
        self._back_to_boundary()
        self.reporter.note(f"step {step} was cut off before its update, and will be computed again")
        if self.stopping.save_now:
            await self._save()

    def _back_to_boundary(self) -> None:
        assert self.boundary is not None
        self.steps.go_back(self.boundary.data)
        restore_generators(self.boundary.random)

    def _state(self) -> RunState:
        return RunState(
            step=self.done,
            total_steps=self.total,
            learning_rate=learning_rate(self.settings, max(1, self.done), total=self.total),
            data=self.steps.data(),
            problems=self.fingerprints,
            skipped_in_a_row=self.safeguard.skipped_in_a_row,
            rollbacks=self.safeguard.rollbacks,
            kl_coef=self.steps.kl_coef,
            random=capture_generators(),
            owed=self.owed,
            ahead=self.steps.ahead,
        )

    def _save_is_due(self, step: int) -> bool:
        """Not while updates are refused: what a rollback goes back to is older than the trouble."""
        every = self.settings.trainer.save_freq
        regular = bool(every) and step % every == 0 and step != self.total
        return self.stopping.save_now or (regular and self.safeguard.skipped_in_a_row == 0)

    async def _save(self) -> None:
        if self.files is None or self.saver is None or self.boundary is None:
            return
        await self._settle()
        try:
            save = self.saver.save(self.boundary, metrics=self.metrics, before=self.files.flush)
            await self.backend.watch.until("the checkpoint before this one to be written", save)
            if self.stopping.save_now:
                await self._finish_saving(self.saver)
                self.stopping.saved()
        except CheckpointError:
            self.reporter.note(f"the run stops at step {self.done}, since it can no longer be saved")
            raise
        self.stopping.longest_save_s = self.saver.longest_s

    async def _settle(self) -> None:
        """Take into the checkpoint what is being drawn, as far as there is time for it."""
        if not self.settings.trainer.max_off_policy_steps:
            return
        try:
            await self.stopping.guard(self.steps.settle())
        except GivenUp:
            await self.steps.stop()
            self.reporter.note("what was being sampled was cut off, and will be sampled by a later policy")
        self.boundary = self._state()

    async def _save_at_end(self) -> None:
        if self.saver is None:
            return
        # The last chance: from here on nothing tries again.
        self.saver.goes_on = False
        if self.done:
            await self._save()
        await self._finish_saving(self.saver)
        self.outcome.checkpoint = self.saver.latest

    async def _finish_saving(self, saver: Saver) -> None:
        await self.backend.watch.until("the checkpoint to be written", saver.finish())

    def _write(self, step: int, metrics: Metrics) -> None:
        if self.files:
            self.files.write_metrics({STEP: step, **metrics})
