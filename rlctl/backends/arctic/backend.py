"""The verbs of GRPO on Snowflake's Arctic platform, through whichever of its clients is installed.

The client creates the jobs and owns every connection; each of its methods is called through `ClientThread`, so one
that blocks, whatever it is declared as, never stalls the run. The order within a step is the platform's: one
`fwd_bwd` of the whole minibatch, then one `step`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlctl.backends.arctic import jobs, replies
from rlctl.backends.arctic.calls import ClientThread, gathered
from rlctl.backends.arctic.connecting import Build, client_of_release
from rlctl.backends.arctic.installed import Flavour, Release, installed_release
from rlctl.backends.arctic.model import ModelFacts, read_facts
from rlctl.backends.arctic.payload import Layout, layout, response_values, score_payload, update_payload
from rlctl.backends.arctic.refusals import refuse
from rlctl.backends.arctic.settings import ArcticSettings
from rlctl.backends.arctic.texts import Texts, completion, load_texts, sampling_params
from rlctl.backends.arctic.turns import Turns
from rlctl.backends.base import Backend
from rlctl.errors import BackendError, CheckpointError
from rlctl.modelpath import locate
from rlctl.seeds import sample_seed
from rlctl.types import (
    BackendInfo,
    Completion,
    GenerateStats,
    JobSpec,
    LogProbs,
    LossSpec,
    LossStats,
    OptimStats,
    Prompt,
    Sampling,
    SyncReport,
    TokenIds,
    TrainRow,
)

logger = logging.getLogger("rlctl.arctic")

Connect = Callable[..., tuple[Build, Flavour, Release]]
RECORD = "arctic.json"
"""In a checkpoint: where the platform put it, and which release did."""


class ArcticBackend(Backend[ArcticSettings]):
    """GRPO's verbs on the platform's training, sampling and log-prob jobs."""

    accumulates = False

    def __init__(self, settings: ArcticSettings, job: JobSpec, *, connect: Connect = client_of_release) -> None:
        """Raises ConfigError for what the platform would ignore or get wrong. `connect` finds the client."""
        super().__init__(settings, job)
        refuse(settings, job, release=installed_release() if connect is client_of_release else None)
        self._connect = connect
        self._thread = ClientThread(timeout_s=settings.request_timeout_s)
        self._turns = Turns(settings, self._thread)
        self._texts: Texts | None = None
        self._facts: ModelFacts | None = None
        self._flavour: Flavour = "unified"
        self._version = 0
        self._waits_for_step = False
        """Whether a gradient lies in the trainer."""
        self._poisoned = False
        """Whether rows of the update at hand hold values that are not finite; they were not sent."""
        self._entropy: dict[int, tuple[TokenIds, float]] = {}
        """Entropy sums of scored rows, by the identity of their ids, which are held so that it stays theirs."""
        self._told_of_rate = False

    def loss_obstacle(self, loss: LossSpec) -> str | None:
        """The platform's loss takes an advantage for each token; what else it cannot do is refused in `__init__`."""
        return super().loss_obstacle(replace(loss, token_advantages=False))

    async def start(self) -> BackendInfo:
        # What this release would do wrong comes before the seconds that it takes to load a tokenizer.
        build, self._flavour, release = self._connect(self.settings, self.job, model=locate(self.job.model).location)
        self._facts = await asyncio.to_thread(read_facts, self.job)
        self._texts = await asyncio.to_thread(load_texts, self.job.model)
        self._tell_of_tiles()
        if (told := self._facts.told_of_zorro(self.settings)) is not None:
            logger.warning(told)
        await self._thread.connect(build)
        return self._facts.info(self.settings, release)

    def _tell_of_tiles(self) -> None:
        if self.settings.tiled_logits_compute and not self.settings.zorro_train:
            logger.warning(
                "remote_backend.arctic.tiled_logits_compute = true: without zorro_train the platform cannot compute "
                "logits in tiles; logits_optimization = compute is sent, which holds all of them once and not twice"
            )

    @property
    def facts(self) -> ModelFacts:
        if self._facts is None:
            raise BackendError("the arctic backend is not started, or is closed already.")
        return self._facts

    async def generate(self, prompts: Sequence[Prompt], *, n: int, sampling: Sampling) -> list[list[Completion]]:
        self.facts.must_know_ids(prompts)
        start = time.perf_counter()
        self._entropy.clear()
        await self._turns.sampler()
        texts = await asyncio.to_thread(self._texts_of, prompts)
        items = await self._sampled(texts, prompts, n=n, sampling=sampling)
        check = self.settings.check_prompt_ids
        flat = [
            completion(item, prompt=prompts[i // n], job=self.job, check_prompt=check) for i, item in enumerate(items)
        ]
        groups = [flat[i * n : (i + 1) * n] for i in range(len(prompts))]
        self.generate_stats = GenerateStats(
            flops=replies.generate_flops(self.facts.shape, prompts, groups),
            seconds=time.perf_counter() - start,
            tokens=sum(len(c.token_ids) for c in flat),
        )
        return groups

    def _texts_of(self, prompts: Sequence[Prompt]) -> list[str]:
        assert self._texts is not None, "loaded with the facts"
        return [self._texts.of(prompt) for prompt in prompts]

    async def _sampled(
        self, texts: Sequence[str], prompts: Sequence[Prompt], *, n: int, sampling: Sampling
    ) -> list[Any]:
        """[P] texts -> [P * n] items. The platform returns one completion for each text, so each is repeated."""
        repeated = [(text, i, sample) for i, text in enumerate(texts) for sample in range(n)]
        size = 1 if self.settings.seeded_sampling else self.settings.samples_per_request or max(1, len(repeated))
        parts = [repeated[i : i + size] for i in range(0, len(repeated), size)]

        async def one(part: Sequence[tuple[str, int, int]]) -> list[Any]:
            _, i, sample = part[0]
            seed = sample_seed(prompts[i].seed, sample) if self.settings.seeded_sampling else None
            params = sampling_params(sampling, job=self.job, seed=seed)
            items = await self._thread.call("generate", [text for text, _, _ in part], sampling_params=params)
            if not isinstance(items, list) or len(items) != len(part):
                told = f"{len(items)} items" if isinstance(items, list) else f"a {type(items).__name__}"
                raise BackendError(f"the platform's generate returned {told} for {len(part)} prompts.")
            return items

        calls = [partial(one, part) for part in parts]
        overlaps = self._thread.runs_side_by_side("generate")
        done = await gathered(calls, at_once=self.settings.max_concurrent_requests if overlaps else 1)
        return [item for items in done for item in items]

    async def log_probs(self, rows: Sequence[TrainRow], *, reference: bool = False) -> list[LogProbs]:
        if reference and not self.job.needs_reference:
            raise BackendError(
                "reference log-probs were asked for, but no reference model is loaded.",
                hint="set algorithm.kl_coef above 0.",
            )
        result = [np.zeros(0, dtype=np.float32) for _ in rows]
        filled = [i for i, row in enumerate(rows) if len(row.completion_ids)]
        if not filled:
            return result
        _ = self.facts
        await self._turns.trainer()
        for i, values in zip(filled, await self._scored([rows[i] for i in filled], reference=reference), strict=True):
            result[i] = values
        return result

    async def _scored(self, rows: Sequence[TrainRow], *, reference: bool) -> list[LogProbs]:
        most = jobs.rows_per_scoring(self.settings, self.job, reference=reference) or len(rows)
        parts = [rows[i : i + most] for i in range(0, len(rows), most)]
        return [values for part in parts for values in await self._scored_at_once(part, reference=reference)]

    async def _scored_at_once(self, rows: Sequence[TrainRow], *, reference: bool) -> list[LogProbs]:
        ranks = jobs.log_prob_gpus(self.settings, self.job) if reference else self.settings.training_gpus
        # The log-prob engine accumulates nothing, so its rows only have to fill its ranks.
        steps = 1 if reference else jobs.accumulation_steps(self.settings, self.job)
        lay = self._layout(rows, multiple=max(ranks, 1) * steps)
        payload = score_payload(lay, settings=self.settings, job=self.job, ranks=ranks)
        reply = await self._thread.call("fwd_no_grad", payload, reference_model=reference)
        zorro = self.settings.zorro_train
        if not reference:
            entropies = response_values(reply, "entropy", lay=lay, zorro=zorro)
            self._entropy |= {
                id(row.completion_ids): (row.completion_ids, float(values.sum()))
                for row, values in zip(rows, entropies, strict=True)
            }
        return response_values(reply, "logprobs", lay=lay, zorro=zorro)

    def _layout(self, rows: Sequence[TrainRow], *, multiple: int) -> Layout:
        assert self._texts is not None, "loaded with the facts"
        return layout(rows, settings=self.settings, job=self.job, pad_id=self._texts.pad_id, multiple=multiple)

    async def forward_backward(self, rows: Sequence[TrainRow], *, loss: LossSpec, loss_denominator: float) -> LossStats:
        _ = self.facts
        filled = [row for row in rows if len(row.completion_ids)]
        if not filled:
            return LossStats()
        if self._waits_for_step:
            raise BackendError(
                "the platform takes one forward_backward for each optim_step: its accumulation is fixed at the start.",
                hint="pass all rows of the minibatch at once.",
            )
        if not all(map(_is_finite, filled)):
            self._poisoned = True
            return LossStats(loss=math.nan, pg_loss=math.nan, rows=len(filled), flops=math.nan)
        await self._turns.trainer()
        if any(row.old_logprobs is None for row in filled):
            old = await self._scored(filled, reference=False)
            filled = [row.with_old(values) for row, values in zip(filled, old, strict=True)]
        lay = self._layout(
            filled, multiple=self.settings.training_gpus * jobs.accumulation_steps(self.settings, self.job)
        )
        payload = update_payload(
            lay, settings=self.settings, job=self.job, loss=loss, loss_denominator=loss_denominator
        )
        self._waits_for_step = True
        reply = await self._thread.call("fwd_bwd", payload, processing=payload["processing"])
        return replies.loss_stats(
            reply,
            lay=lay,
            loss=loss,
            loss_denominator=loss_denominator,
            shape=self.facts.shape,
            zorro=self.settings.zorro_train,
            entropy_sum=self._entropy_of(filled),
        )

    def _entropy_of(self, rows: Sequence[TrainRow]) -> float | None:
        known = [self._entropy.get(id(row.completion_ids)) for row in rows]
        return None if None in known else math.fsum(entry[1] for entry in known if entry is not None)

    async def optim_step(self, lr: float) -> OptimStats:
        _ = self.facts
        if self._poisoned or not self._waits_for_step:
            poisoned, self._poisoned = self._poisoned, False
            return OptimStats(math.nan if poisoned else 0.0, lr, stepped=False, changed_fraction=0.0)
        self._waits_for_step = False
        stats = replies.optim_stats(await self._thread.call("step"))
        self._version += 1
        if not self._told_of_rate and not math.isclose(stats.lr, lr, rel_tol=0.01):
            self._told_of_rate = True
            logger.warning(
                "the platform runs its own learning-rate schedule: it is at %g after the update for which the run "
                "meant %g; actor/lr shows what the run meant",
                stats.lr,
                lr,
            )
        return stats

    async def sync_weights(self) -> SyncReport:
        _ = self.facts
        await self._turns.sync()
        return SyncReport(names_expected=None, names_sent=None, version=self._version)

    async def save(self, path: Path) -> None:
        _ = self.facts
        await self._turns.weights()
        await asyncio.to_thread(path.mkdir, parents=True, exist_ok=True)
        told: dict[str, Any] = {}
        if self._flavour == "unified":
            told = {"path": str(path.resolve()), "export_hf": True}
        reply = await self._thread.call("save_checkpoint", **told)
        if not isinstance(reply, dict) or not reply.get("path"):
            raise CheckpointError(f"the platform's save_checkpoint named no path: {str(reply)[:120]}.")
        record = {"client": self._flavour, "version": self._version, **reply}
        await asyncio.to_thread(_keep, path, record)

    async def load(self, path: Path) -> None:
        _ = self.facts
        if self._flavour != "unified":
            raise CheckpointError(
                "the platform's legacy client can save a checkpoint, but not load one.",
                hint="use a release with the unified client.",
            )
        record = await asyncio.to_thread(_record, path)
        await self._turns.weights()
        await self._thread.call("load_checkpoint", path=str(path.resolve()))
        self._version = int(record["version"])
        await self.sync_weights()

    async def close(self) -> None:
        method = None if self.settings.attaches else "shutdown"
        problem = await self._thread.close(method=method, timeout_s=self.settings.shutdown_timeout_s)
        self._facts = self._texts = None
        if problem is not None:
            logger.warning("the jobs may still run: %s", problem.message)


def _is_finite(row: TrainRow) -> bool:
    known = [values for values in (row.old_logprobs, row.ref_logprobs) if values is not None]
    return math.isfinite(row.advantage) and all(np.isfinite(values).all() for values in known)


def _keep(path: Path, record: dict[str, Any]) -> None:
    """Bring the exported model into the checkpoint's own folder, and write down where the platform put what."""
    exported = Path(str(record.get("hf_path") or path)).resolve()
    if record["client"] == "unified" and exported != path.resolve() and exported.is_dir():
        take = shutil.move if exported.is_relative_to(path.resolve()) else _copied
        for file in list(exported.iterdir()):
            take(file, path / file.name)
    if record["client"] == "unified" and not any(path.iterdir()):
        raise CheckpointError(
            f"the platform says it wrote {record['path']}, and it is not seen here.",
            hint="set run.dir to a folder that this machine and the platform's share.",
        )
    (path / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _copied(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


def _record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads((path / RECORD).read_text(encoding="utf-8"))
        return {"version": 0, **record}
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path / RECORD} cannot be read: {error}.") from error
