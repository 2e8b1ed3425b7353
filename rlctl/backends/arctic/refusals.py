"""What the platform would ignore, compute wrongly or break on: every complaint at once, before the run."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from rlctl.backends.arctic import jobs
from rlctl.backends.arctic.installed import Release
from rlctl.backends.arctic.settings import ArcticSettings
from rlctl.errors import ConfigError
from rlctl.types import JobSpec, LossSpec, UpdatePlan

FIXED_CLIP = (0.2, 0.2, 3.0)
"""Bounds below, above and of the dual clip that the platform's loss `verl_grpo` has written into it."""
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})
_BLOCK = "remote_backend.arctic"
_KL = "KL (algorithm.kl_coef, algorithm.kl_loss_coef)"
_GEOMETRY = frozenset({"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"})


def refuse(settings: ArcticSettings, job: JobSpec, *, release: Release | None) -> None:
    """Raises ConfigError with every reason for which the run would not be what its settings say.

    Without a `release`, those that depend on the installed one are left to `refuse_with`.
    """
    complaints = [*_of_connection(settings), *_of_engines(settings, job), *_of_job(job)]
    if job.plan is not None:
        complaints += [*_of_loss(settings, job.plan.loss), *_of_sampling(job.plan), *_of_geometry(settings, job)]
    raise_all([*complaints, *(_of_release(settings, release) if release else ())])


def refuse_with(settings: ArcticSettings, job: JobSpec, *, release: Release) -> None:
    """The same for what depends on the installed release."""
    raise_all([*_of_release(settings, release)])


def _of_release(settings: ArcticSettings, release: Release) -> Iterator[str]:
    return _of_legacy(settings, release) if release.flavour(settings) == "legacy" else _of_unified(settings)


def raise_all(complaints: list[str]) -> None:
    if complaints:
        raise ConfigError("\n".join(complaints), hint="change these settings, or use another backend.")


def _of_connection(settings: ArcticSettings) -> Iterator[str]:
    launches = settings.launch_server and not settings.attaches and settings.comm_protocol == "http"
    if launches and not is_this_machine(settings.host):
        yield (
            f"{_BLOCK}.host = {settings.host}: a server can only be started on this machine; "
            f"set {_BLOCK}.launch_server = false to connect to one that runs there."
        )
    if settings.attaches and settings.comm_protocol == "ray":
        yield f"{_BLOCK}: jobs can be attached to over http only; over ray the client also wants live actor handles."
    if settings.attaches and (settings.training_job_id is None or settings.sampling_job_id is None):
        yield f"{_BLOCK}: attaching needs both training_job_id and sampling_job_id."


def is_this_machine(host: str) -> bool:
    """Whether a server could be started under that name here: it is local, or an address of this machine."""
    if host in LOCAL_HOSTS:
        return True
    try:
        family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _of_engines(settings: ArcticSettings, job: JobSpec) -> Iterator[str]:
    if settings.sampling_gpus % settings.sampling_tp_size:
        yield (
            f"{_BLOCK}.sampling_tp_size = {settings.sampling_tp_size} does not divide "
            f"sampling_gpus = {settings.sampling_gpus}."
        )
    if settings.zero_stage == 0:
        yield f"{_BLOCK}.zero_stage = 0 fails with the platform's bfloat16 weights and float32 gradients; use 1 to 3."
    if settings.offload_param and settings.zero_stage != 3:
        yield f"{_BLOCK}.offload_param needs zero_stage = 3, which cuts parameters; it is {settings.zero_stage}."
    if jobs.mixes_rows(settings) and (settings.micro_batch_size or 1) > 1:
        yield (
            f"{_BLOCK}.attn_implementation = {settings.attn_implementation}: without flash attention the rows of a "
            f"micro-batch see each other; leave out micro_batch_size = {settings.micro_batch_size}, or set it to 1."
        )
    if fixed := sorted(_GEOMETRY & settings.deepspeed.keys()):
        yield (
            f"{_BLOCK}.deepspeed: {', '.join(fixed)} follow from the run, which cuts its batches by them; set "
            f"{_BLOCK}.micro_batch_size, trainer.mini_batch_size or training_gpus."
        )
    if settings.low_memory and not settings.cuda_ipc:
        yield f"{_BLOCK}.low_memory is a way of cuda_ipc, which is off."
    if settings.logits_from_float32 and not settings.zorro_train:
        yield f"{_BLOCK}.logits_from_float32: the platform has it with zorro_train = true only."
    if settings.cuda_ipc and not settings.colocate:
        yield f"{_BLOCK}.cuda_ipc hands weights over within a device, so it needs colocate = true."
    if settings.sleep_training and not settings.colocate:
        yield f"{_BLOCK}.sleep_training makes room for a colocated sampler, so it needs colocate = true."
    if settings.seeded_sampling and settings.samples_per_request not in (None, 1):
        yield (
            f"{_BLOCK}.samples_per_request = {settings.samples_per_request}: with seeded_sampling each sample is a "
            "request of its own."
        )
    yield from _of_reference(settings, job)


def _of_reference(settings: ArcticSettings, job: JobSpec) -> Iterator[str]:
    if not job.needs_reference:
        return
    if settings.attaches and settings.log_prob_job_id is None:
        yield f"{_KL} needs a reference model, so attaching needs {_BLOCK}.log_prob_job_id too."
    elif not settings.attaches and jobs.log_prob_gpus(settings, job) == 0:
        yield f"{_KL} needs a reference model, and {_BLOCK}.log_prob_gpus = 0."
    if settings.log_prob_engine != "deepspeed":
        yield (
            f"{_KL} needs {_BLOCK}.log_prob_engine = deepspeed: the platform's vLLM engine does not answer fwd_no_grad."
        )


def _of_job(job: JobSpec) -> Iterator[str]:
    if job.lora is not None:
        yield f"model.lora.rank = {job.lora.rank}: the platform trains whole weights only."


def _of_loss(settings: ArcticSettings, loss: LossSpec) -> Iterator[str]:
    names = ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
    for name, fixed in zip(names, FIXED_CLIP, strict=True):
        if (value := getattr(loss, name)) != fixed:
            told = "null" if value is None else value
            yield f"algorithm.{name} = {told}: the platform's loss ignores it and always takes {fixed}."
    if loss.policy_loss != "vanilla" or loss.importance_sampling != "token":
        which = (
            f"policy_loss = {loss.policy_loss}"
            if loss.policy_loss != "vanilla"
            else f"importance_sampling = {loss.importance_sampling}"
        )
        yield f"algorithm.{which}: the platform's loss is the clipped one of token ratios, whatever it is told."
    if loss.kl_coef > 0 and loss.kl_estimator not in ("k1", "k2", "k3"):
        yield f"algorithm.kl_estimator = {loss.kl_estimator}: the platform has k1, k2 and k3 as they stand."
    if loss.loss_agg_mode != "token-mean":
        yield (
            f"algorithm.loss_agg_mode = {loss.loss_agg_mode}: the platform joins the rows of a micro-batch before its "
            "loss sees them, so only token-mean means what it says."
        )
    if loss.entropy_coeff > 0 and not settings.zorro_train:
        yield (
            f"algorithm.entropy_coeff = {loss.entropy_coeff}: without {_BLOCK}.zorro_train the platform's entropy is "
            "one token off the response it should belong to."
        )


def _of_sampling(plan: UpdatePlan) -> Iterator[str]:
    sampling = plan.sampling
    if sampling.top_p < 1 or sampling.top_k != -1 or sampling.min_p > 0:
        yield (
            "rollout.top_p, top_k and min_p: the sampler's log-probs would be those of the filtered distribution; "
            "leave them at 1.0, -1 and 0.0."
        )


def _of_geometry(settings: ArcticSettings, job: JobSpec) -> Iterator[str]:
    assert job.plan is not None, "only a run has a geometry"
    rows, gpus = job.plan.rows_per_update, settings.training_gpus
    if rows % gpus:
        yield (
            f"{rows} rows an update (problems of trainer.mini_batch_size, or train_batch_size, x rollout.n) cannot be "
            f"cut evenly over {_BLOCK}.training_gpus = {gpus}."
        )
    elif settings.micro_batch_size is not None and (rows // gpus) % settings.micro_batch_size:
        yield (
            f"{_BLOCK}.micro_batch_size = {settings.micro_batch_size} does not divide the {rows // gpus} rows that "
            "each GPU has of an update."
        )
    longest = job.max_prompt_length + job.max_response_length
    if longest > job.max_tokens_per_device:
        yield (
            f"trainer.max_tokens_per_device = {job.max_tokens_per_device} is less than one row may have: "
            f"data.max_prompt_length + rollout.max_response_length = {longest}."
        )


def _of_unified(settings: ArcticSettings) -> Iterator[str]:
    for name in ("ray_auto_attach", "server_logs"):
        if not getattr(settings, name):
            yield f"{_BLOCK}.{name} = false: the unified client cannot tell a server; only the legacy one can."


def _of_legacy(settings: ArcticSettings, release: Release) -> Iterator[str]:
    which = f"the legacy client of arctic_platform {release.version}"
    if settings.blocking_calls:
        yield f"{_BLOCK}.blocking_calls: {which} has no blocking twin."
    if settings.cuda_visible_devices is not None:
        yield f"{_BLOCK}.cuda_visible_devices: {which} cannot pass it to a server; set CUDA_VISIBLE_DEVICES instead."
    if settings.comm_protocol == "ray":
        if not settings.launch_server:
            yield f"{_BLOCK}.launch_server = false: over ray {which} makes its actors itself; set it to true."
        return
    if settings.low_memory and not release.has_safe_codec:
        yield f"{_BLOCK}.low_memory: {which} has it over ray only."
    shared = not settings.launch_server and not settings.attaches
    if shared and not settings.destroy_foreign_jobs:
        yield (
            f"{_BLOCK}.launch_server = false: before it creates its jobs, {which} destroys every job that the server "
            f"at {settings.host}:{settings.port} runs, whoever started it. Set {_BLOCK}.destroy_foreign_jobs = true if "
            "they are yours, or attach with training_job_id and sampling_job_id."
        )
