"""An evaluation from start to close: load, sample, grade, and write each batch down before the next begins.

Ctrl-C or SIGTERM finishes the batch that is being sampled and ends with what is there; a second one ends at once, and
the batches before are on disk.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl import data
from rlctl.environments.grading import with_own_graders
from rlctl.environments.playing import Player
from rlctl.environments.setting_up import must_be_played, player_of, with_environment
from rlctl.errors import ConfigError, DataError
from rlctl.eval_report import Evaluation, summarise
from rlctl.eval_saved import sampling_of
from rlctl.evaluation import evaluate
from rlctl.loop import Reporter, backend_for
from rlctl.prepare import load_policy, within_length
from rlctl.report import mean
from rlctl.rewards import RewardSet, score
from rlctl.rewards.loading import rewards_of
from rlctl.rollouts import Groups, Sampler
from rlctl.runfiles import sample_record, strict
from rlctl.settings import Settings
from rlctl.stopping import Stopping, listening
from rlctl.text_to_sql.loading import SqlProblems
from rlctl.tokenizer import ChatTokenizer
from rlctl.types import Problem


@dataclass(frozen=True, slots=True)
class PreparedEvaluation:
    """What an evaluation needs beside its backend."""

    settings: Settings
    model: str
    tokenizer: ChatTokenizer
    end_token_ids: tuple[int, ...]
    rewards: RewardSet
    problems: Sequence[Problem]
    notes: Sequence[str]
    player: Player | None = None

    def close(self) -> None:
        """End what rewards and environment have running."""
        self.rewards.close()
        if self.player is not None:
            self.player.environment.close()


def prepare(settings: Settings, *, limit: int | None) -> PreparedEvaluation:
    """Load and check all but the model. Raises ConfigError (DataError, ModelError) with the cure."""
    if settings.eval.n > 1 and settings.eval.temperature == 0:
        raise ConfigError(
            f"eval.n = {settings.eval.n} completions at temperature 0 would all be the same.",
            hint="add --temperature 1, or leave --n at 1.",
        )
    rewards = rewards_of(settings.reward)
    policy = load_policy(settings)
    player = player_of(settings, policy.tokenizer, end_token_ids=policy.end_token_ids)
    rewards, notes = with_environment(rewards, player, own_grader=settings.reward.own_grader)
    problems = data.load_problems(settings.data, split="eval", seed=settings.seed, check=rewards.gold_complaint)
    if not len(problems):
        raise DataError("there are no problems to evaluate on.", hint="name a file: --data FILE")
    if limit is not None and limit < len(problems):
        problems = [problems[i] for i in data.some_of(len(problems), size=limit, seed=settings.seed)]
    sql = SqlProblems(settings, rewards, policy.tokenizer)
    kept, dropped = within_length(settings, policy.tokenizer, sql.ready(problems))
    if not notes:
        rewards, notes = with_own_graders(rewards, settings)
    must_be_played(player, kept)
    notes += sql.notes()
    if dropped:
        limit_tokens = settings.data.max_prompt_length
        notes.append(f"{dropped} prompts longer than data.max_prompt_length = {limit_tokens} tokens are left out")
    return PreparedEvaluation(
        settings, policy.model, policy.tokenizer, policy.end_token_ids, rewards, kept, notes, player
    )


async def run(prepared: PreparedEvaluation, *, reporter: Reporter, samples: Path, name: str) -> tuple[Evaluation, int]:
    """(the evaluation, the signal that ended it early or 0). Rollouts are appended to `samples` batch by batch."""
    settings, task = prepared.settings, prepared.rewards.rewards[0].name
    backend = backend_for(prepared)
    stopping = Stopping(settings.run.stop_grace_s)
    with listening(stopping, note=reporter.note, leave=reporter.abort):
        try:
            await backend.start()
            start = time.perf_counter()
            sampler = Sampler(
                backend,
                prepared.tokenizer,
                lambda items: score(prepared.rewards, items),
                n=settings.eval.n,
                sampling=settings.evaluation(),
                seed=settings.seed,
                player=prepared.player,
            )
            finished: Groups = []

            def batch_done(batch: Groups) -> None:
                finished.extend(batch)
                _write(samples, batch, model=name, task=task)
                so_far = mean(r.scores[task] for group in finished for r in group if task in r.scores)
                told = "n/a" if so_far is None else f"{so_far:.3f}"
                reporter.note(f"{name}: {len(finished):,}/{len(prepared.problems):,} problems, {task} {told}")

            await evaluate(sampler, prepared.problems, stopped=lambda: stopping.must_end, done=batch_done)
            evaluation = summarise(
                name,
                finished,
                rewards=prepared.rewards,
                wanted=len(prepared.problems),
                seconds=time.perf_counter() - start,
                seed=settings.seed,
                notes=prepared.notes,
                sampling=sampling_of(settings),
            )
            return evaluation, stopping.signal or 0
        finally:
            try:
                await backend.close()
            finally:
                await asyncio.to_thread(prepared.close)


def _write(path: Path, groups: Groups, *, model: str, task: str) -> None:
    rollouts = [(number, rollout) for group in groups for number, rollout in enumerate(group)]
    with path.open("a", encoding="utf-8") as file:
        for number, rollout in rollouts:
            about = {"model": model, "source": rollout.problem.source or "data", "task": task, "sample": number}
            file.write(json.dumps(strict({**about, **sample_record(rollout)}), allow_nan=False) + "\n")
