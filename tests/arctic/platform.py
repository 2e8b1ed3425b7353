"""A platform of one process on rlctl's local engine: jobs that train, sample and score for real, as the wire asks.

It keeps the quirks that an adapter has to cope with: the sampler has weights of its own until they are synced, it
cannot sample while asleep, log-probs are bfloat16 and stand where the zorro flag puts them, padding is filled with
the pad id, clip bounds are fixed, the learning rate is the scheduler's, and rows must fill ranks and micro-batches.
Scoring is a plain forward pass of transformers, independent of the engine.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlctl.backends.local.backend import LocalBackend
from rlctl.backends.local.settings import LocalSettings
from rlctl.types import Completion, Prompt, Sampling
from tests import defaults
from tests.arctic.computing import balance, loss_spec, rate, rows_of, scores, temperature

LIMIT = 10_000


class Refused(Exception):
    """A deliberate error of the server: status and detail."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


@dataclass
class Job:
    id: int
    type: str
    config: dict[str, Any]
    backend: LocalBackend
    plain: Any = None
    """The same model as transformers has it, made when it is first asked to score."""

    def record(self) -> dict[str, Any]:
        path = self.config.get("checkpoint_path")
        folder = f"{path}/arctic_rl_job_{self.id}" if path else None
        return {
            "job_id": self.id, "job_type": self.type, "model_name": self.config["model_name"], "status": "RUNNING",
            "checkpoint_path": folder, "sync_path": f"{folder}/weight_sync.pt" if folder else None,
        }  # fmt: skip


@dataclass
class Platform:
    """Everything a server holds. `calls` are (operation, payload) in their order."""

    training_gpus: int = 1
    sampling_gpus: int = 1
    log_prob_gpus: int = 1
    colocate: bool = True
    reply_dtype: torch.dtype = torch.bfloat16
    calls: list[tuple[str, Any]] = field(default_factory=list)
    jobs: dict[int, Job] = field(default_factory=dict)
    next_id: int = 1
    asleep: set[str] = field(default_factory=set)
    steps: int = 0
    has_gradient: bool = False
    draws: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def of_type(self, kind: str) -> Job:
        job = next((job for job in self.jobs.values() if job.type == kind), None)
        if job is None:
            raise Refused(404, f"no {kind} job")
        return job

    def verified(self, job_id: int, *kinds: str) -> Job:
        if job_id not in self.jobs:
            raise Refused(404, f"Job {job_id} not found")
        if self.jobs[job_id].type not in kinds:
            raise Refused(400, f"Job {job_id} is not a {' or '.join(kinds)} job")
        return self.jobs[job_id]

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        kind = config.get("job_type", "training")
        self.calls.append(("initialize", config))
        job_id, self.next_id = self.next_id, self.next_id + 1
        gpus = {"training": self.training_gpus, "sampling": self.sampling_gpus, "log_prob": self.log_prob_gpus}
        if kind not in gpus:
            raise Refused(400, f"Unknown job type: {kind}")
        if not gpus[kind]:
            raise Refused(400, f"No {kind.replace('_', '-')} GPUs configured")
        if any(job.type == kind for job in self.jobs.values()):
            raise Refused(409, f"{kind.capitalize()} job already running")
        if kind == "training" and not config.get("checkpoint_path"):
            raise Refused(400, "checkpoint_path is required for training jobs")
        self.jobs[job_id] = Job(job_id, kind, config, _engine(config))
        return {"job_id": job_id, "job_type": kind, "running": True}

    def destroy(self, job_id: int) -> dict[str, Any]:
        self.calls.append(("destroy", job_id))
        if job_id not in self.jobs:
            raise Refused(404, f"Job {job_id} not found")
        asyncio.run(self.jobs.pop(job_id).backend.close())
        return {"job_id": job_id}

    def status(self) -> dict[str, Any]:
        jobs = {str(job.id): job.record() for job in self.jobs.values()}
        gpus = {name: getattr(self, name) for name in ("training_gpus", "sampling_gpus", "log_prob_gpus")}
        return {**gpus, "jobs": jobs}

    def forward(self, job: Job, message: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(("forward", message))
        batch, meta, processing = message["batch"], message["meta"], message["processing"]
        if processing.get("loss_fn", "grpo") is not None:
            raise TypeError("grpo_loss() takes 4 positional arguments but 5 were given")
        self._must_split(job, batch, meta)
        out = scores(job, batch, meta, processing["post"])
        return {"job_id": job.id, "batch": {k: v.to(self.reply_dtype) for k, v in out.items()}, "metrics": {}}

    def forward_backward(self, job: Job, message: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(("forward-backward", message))
        batch, meta, processing = message["batch"], message["meta"], message["processing"]
        if processing["loss_fn"] != "verl_grpo":
            raise TypeError("grpo_loss() takes 4 positional arguments but 5 were given")
        self._must_split(job, batch, meta)
        spec = loss_spec(meta)
        rows = rows_of(batch, kl=spec.kl_coef > 0)
        denominator = meta["batch_num_tokens"]
        _ = meta["global_batch_size"]
        job.backend.compute = replace(job.backend.compute, temperature=temperature(job, meta, processing["post"]))
        stats = asyncio.run(job.backend.forward_backward(rows, loss=spec, loss_denominator=float(denominator)))
        self.has_gradient = True
        mean = denominator / max(stats.tokens, 1)
        metrics = {
            "loss": stats.loss * mean, "actor/pg_loss": stats.pg_loss * mean,
            "actor/ppo_kl": stats.ppo_kl_sum / max(stats.tokens, 1),
            "actor/pg_clipfrac": stats.clipped_tokens / max(stats.tokens, 1), "actor/pg_clipfrac_lower": 0.0,
        }  # fmt: skip
        if spec.kl_coef > 0:
            metrics |= {"kl_loss": stats.kl_loss * mean / spec.kl_coef, "kl_coef": spec.kl_coef}
        return {"job_id": job.id, "metrics": metrics, "avg_loss": metrics["loss"]}

    def _must_split(self, job: Job, batch: dict[str, Tensor], meta: dict[str, Any]) -> None:
        ranks = self.training_gpus if job.type == "training" else self.log_prob_gpus
        config = job.config.get("ds_config") or {}
        steps = config.get("gradient_accumulation_steps", 1) if job.type == "training" else 1
        rows = len(batch["input_ids"])
        if meta.get("load_balancer") and rows <= ranks:
            raise ValueError("too many values to unpack (expected 2)")
        if meta.get("load_balancer"):
            balance(batch, meta, ranks)
        if rows < ranks * steps:
            raise ValueError(f"Batch dimension {rows} is smaller than num_workers")
        assert rows % (ranks * steps) == 0, f"{rows} rows, {ranks} ranks of {steps} micro-batches"
        if meta["logits_optimization"] == "memory" and not meta["zorro_train_enable"]:
            raise ValueError("logits.optimization=memory requires zorro enabled")
        if meta["zorro_train_enable"]:
            assert meta["max_response_len"] == job.config["ds_worker_config"]["response_len"]

    def step(self, job: Job) -> dict[str, Any]:
        self.calls.append(("step", None))
        if not self.has_gradient:
            raise RuntimeError("step without a backward pass")
        self.has_gradient = False
        self.steps += 1
        stats = asyncio.run(job.backend.optim_step(rate(job.config["ds_config"], self.steps)))
        metrics = {"last_lr": rate(job.config["ds_config"], self.steps + 1), "grad_norm": stats.grad_norm}
        if self.training_gpus > 1:
            metrics = {name: [value] * self.training_gpus for name, value in metrics.items()}
        return {"job_id": job.id, "metrics": metrics, "batch": {}}

    def generate(self, job: Job, prompts: list[str], params: dict[str, Any] | None) -> list[dict[str, Any]]:
        self.calls.append(("generate", {"prompts": prompts, "sampling_params": params}))
        if self.asleep & {"weights", "kv_cache"}:
            raise RuntimeError("generate while asleep")
        if not all(isinstance(prompt, str) for prompt in prompts):
            raise TypeError("prompts are strings")
        params = params or {}
        tokenizer = tokenizer_of(job)
        asked = []
        for prompt in prompts:
            seed = params.get("seed", self.draws)
            self.draws += 1
            asked.append(Prompt(np.asarray(tokenizer(prompt)["input_ids"], dtype=np.int32), seed))
        sampling = Sampling(
            params["temperature"], params["top_p"], params["top_k"], params["min_p"], params["max_tokens"]
        )
        job.backend.job = replace(job.backend.job, end_token_ids=tuple(params["stop_token_ids"]))
        groups = asyncio.run(job.backend.generate(asked, n=1, sampling=sampling))
        return [
            _item(prompt, group[0], tokenizer, wants=params.get("logprobs") is not None)
            for prompt, group in zip(asked, groups, strict=True)
        ]

    def sync(self) -> dict[str, Any]:
        self.calls.append(("weight-sync", None))
        if "weights" in self.asleep:
            raise RuntimeError("sampler has no weights to write to")
        training = self.of_type("training")
        source = dict(training.backend.policy.causal_lm.named_parameters())
        with torch.no_grad():
            for name, parameter in self.of_type("sampling").backend.policy.causal_lm.named_parameters():
                parameter.copy_(source[name])
        return {"job_id": training.id, "status": "ok"}

    def sleep(self, job: Job, level: int) -> dict[str, Any]:
        self.calls.append(("sleep-inference", level))
        status = "already_sleeping" if self.asleep else "sleeping"
        self.asleep = {"weights", "kv_cache"}
        return {"job_id": job.id, "sampling": {"status": status, "level": level, "workers": []}}

    def wake(self, job: Job, tags: list[str] | None) -> dict[str, Any]:
        self.calls.append(("wake-inference", tags))
        wanted = set(tags or ("weights", "kv_cache"))
        if wanted == {"kv_cache"} and "weights" in self.asleep:
            raise RuntimeError("weights first")
        status = "already_ready" if not self.asleep else "ready"
        self.asleep -= wanted
        return {"job_id": job.id, "sampling": {"status": status, "tags": tags, "workers": []}}

    def log(self, operation: str, payload: Any = None) -> None:
        self.calls.append((operation, payload))

    def save(self, job: Job, *, path: str | None, export_hf: bool) -> dict[str, Any]:
        root = Path(path or job.record()["checkpoint_path"])
        self.calls.append(("save", {"path": path, "export_hf": export_hf}))
        asyncio.run(job.backend.save(root / f"global_step{self.steps}"))
        (root / "latest").write_text(f"global_step{self.steps}")
        if export_hf:
            shutil.copytree(root / f"global_step{self.steps}", root / "hf", ignore=shutil.ignore_patterns("*.pt"))
        hf_path = str(root / "hf") if export_hf else None
        return {"job_id": job.id, "path": str(root), "hf_path": hf_path, "global_step": self.steps}

    def load(self, job: Job, path: str) -> dict[str, Any]:
        self.calls.append(("load-checkpoint", path))
        tag = (Path(path) / "latest").read_text()
        asyncio.run(job.backend.load(Path(path) / tag))
        self.steps = int(tag.removeprefix("global_step"))
        return {"job_id": job.id, "path": path, "global_step": self.steps}

    def named(self, operation: str) -> list[Any]:
        """The payloads of one operation."""
        return [payload for name, payload in self.calls if name == operation]


def _engine(config: dict[str, Any]) -> LocalBackend:
    ds = config.get("ds_config") or {}
    optimizer = ds.get("optimizer", {}).get("params", {})
    job = defaults.job(
        model=config["model_name"], end_token_ids=(), needs_reference=False, max_tokens_per_device=LIMIT,
        max_prompt_length=8, max_response_length=8, temperature=1.0,
        weight_decay=optimizer.get("weight_decay", 0.0), betas=tuple(optimizer.get("betas", (0.9, 0.999))),
        grad_clip=ds.get("gradient_clipping", 1e9),
    )  # fmt: skip
    backend = LocalBackend(LocalSettings(dtype="float32", kv_cache_gb=0.25), job)
    asyncio.run(backend.start())
    return backend


def tokenizer_of(job: Job) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(job.config["model_name"])


def _item(prompt: Prompt, completion: Completion, tokenizer: Any, *, wants: bool) -> dict[str, Any]:
    ids = completion.token_ids.tolist()
    item: dict[str, Any] = {
        "text": tokenizer.decode(ids, skip_special_tokens=True), "token_ids": ids,
        "finish_reason": completion.finish_reason, "prompt_len": len(prompt.token_ids),
        "generation_len": len(ids), "prefix_cache_len": 0,
    }  # fmt: skip
    if wants:
        chosen = zip(ids, completion.logprobs.tolist(), strict=True)
        item["logprobs"] = [{token: {"logprob": value, "rank": 1}} for token, value in chosen]
    return item
