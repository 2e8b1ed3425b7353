"""Make the platform's client: import it, fill its configuration, and let it create or attach to its jobs.

Two different classes are both called ArcticRLClientConfig. The unified one refuses keys that it does not know,
the legacy one ignores them in silence, so each gets exactly its own. A client's constructor creates its jobs and
returns when their engines are built: it blocks for minutes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlctl.backends.arctic import INSTALL, jobs
from rlctl.backends.arctic.installed import Flavour, Release, find_release
from rlctl.backends.arctic.refusals import LOCAL_HOSTS, refuse_with
from rlctl.backends.arctic.settings import ArcticSettings
from rlctl.backends.importing import import_foreign
from rlctl.errors import BackendUnavailable, ConfigError
from rlctl.types import JobSpec

Config = dict[str, Any]
Build = Callable[[], object]
"""Makes the client; blocks."""

_LEGACY = {"http": "http_client:ArcticRLHTTPClient", "ray": "ray_client:ArcticRLRayClient"}
_SAFE_LOAD, _UNSAFE_LOAD = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


def client_of_release(settings: ArcticSettings, job: JobSpec, *, model: str) -> tuple[Build, Flavour, Release]:
    """(what makes the client, its kind, the release), for the installed package; `model` is a folder or hub id.

    Raises BackendUnavailable when nothing fits, ConfigError for what this release would do wrong.
    """
    release = find_release()
    flavour = release.flavour(settings)
    refuse_with(settings, job, release=release)
    if flavour == "unified":
        return lambda: _unified(settings, unified_config(settings, job, model=model)), flavour, release
    if not release.has_safe_codec:
        _load_weights_only()
    return lambda: _legacy(settings, legacy_config(settings, job, model=model, release=release)), flavour, release


def _unified(settings: ArcticSettings, config: Config) -> object:
    config_class = _imported("arctic_platform.client:ArcticRLClientConfig")
    create = _imported("arctic_platform.client:create_arctic_rl_client")
    if config["backend"]["launch_local_server"]:
        _must_be_free(settings, else_it="the one that is to be started would not get the port.")
    return create(_filled(config_class, config), blocking_calls=settings.blocking_calls)


def _legacy(settings: ArcticSettings, config: Config) -> object:
    client = _imported(f"arctic_platform.rl.{_LEGACY[settings.comm_protocol]}")
    filled = _filled(_imported("arctic_platform.rl.config:ArcticRLClientConfig"), config)
    if settings.comm_protocol == "ray":
        return client(filled, None)
    if settings.launch_server and not settings.attaches and not settings.destroy_foreign_jobs:
        _must_be_free(settings, else_it="the legacy client would take it for its own and destroy its jobs.")
    return client(filled)


def _imported(reference: str) -> Any:
    return import_foreign(reference, needed_by="backend 'arctic'", install=INSTALL)


def _filled(config_class: Any, config: Config) -> object:
    """Raises ConfigError when this release's configuration refuses a key or a value."""
    from pydantic import ValidationError

    try:
        return config_class(**config)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in error.errors())
        raise ConfigError(
            f"the platform's {config_class.__name__} refuses what rlctl sends: {wrong}.",
            hint="its configuration has changed; `rlctl check-backend arctic` says which release this is.",
        ) from error


def _must_be_free(settings: ArcticSettings, *, else_it: str) -> None:
    """Raises BackendUnavailable when somebody listens where a server is to be started: the client would take that
    one, with the GPUs, the sharing of them and the jobs that it has, for its own."""
    try:
        socket.create_connection((_address(settings.host), settings.port), timeout=2).close()
    except OSError:
        return
    raise BackendUnavailable(
        f"a server answers at {settings.host}:{settings.port} already; {else_it}",
        hint="set remote_backend.arctic.port to a free one, or stop that server; "
        "remote_backend.arctic.launch_server = false connects to it.",
    )


def _address(host: str) -> str:
    return "127.0.0.1" if host in LOCAL_HOSTS else host


def _load_weights_only() -> None:
    """Make torch refuse pickled objects: release 0.1.2 loads replies with `weights_only=False`.

    Raises ConfigError when the environment asks for the opposite.
    """
    if os.environ.get(_UNSAFE_LOAD, "0").lower() in ("1", "y", "yes", "true"):
        raise ConfigError(
            f"{_UNSAFE_LOAD} is set: this release's client would unpickle whatever a server sends.",
            hint=f"unset {_UNSAFE_LOAD}.",
        )
    os.environ[_SAFE_LOAD] = "1"


def unified_config(settings: ArcticSettings, job: JobSpec, *, model: str) -> Config:
    """The fields of the unified client's ArcticRLClientConfig."""
    return {
        "model_name": model,
        "seed": settings.seed,
        "dtype": "bfloat16",
        "max_seq_len": job.max_prompt_length + job.max_response_length,
        **_sizes(settings, job),
        "job_ready_timeout": settings.job_ready_timeout_s,
        "request_timeout": settings.request_timeout_s,
        **_job_ids(settings),
        "training": {
            "full_determinism": settings.full_determinism,
            "checkpoint_path": checkpoint_path(settings),
            "ds_config": jobs.deepspeed_config(settings, job),
            "ds_worker_config": jobs.worker_config(settings, job),
            "cuda_ipc": settings.cuda_ipc,
            "low_memory": settings.low_memory,
        },
        "sampling": {
            "vllm": jobs.vllm_config(settings, job),
            "arctic_inference_config": jobs.inference_config(settings),
            "log_prob_engine": settings.log_prob_engine,
            "log_prob_ds_config": jobs.log_prob_config(settings),
        },
        "backend": {
            "type": "onprem",
            "protocol": settings.comm_protocol,
            "host": settings.host,
            "port": settings.port,
            "colocate": settings.colocate,
            # Over ray there is no server: the client makes its actors itself.
            "launch_local_server": settings.launch_server
            and not settings.attaches
            and settings.comm_protocol == "http",
            "server_cuda_visible_devices": settings.cuda_visible_devices,
            "startup_timeout": settings.startup_timeout_s,
        },
    }


def legacy_config(settings: ArcticSettings, job: JobSpec, *, model: str, release: Release) -> Config:
    """The fields of the legacy clients' ArcticRLClientConfig."""
    over_http = settings.comm_protocol == "http"
    launches = not over_http or (settings.launch_server and not settings.attaches)
    config: Config = {
        "backend": "local" if launches else "dss-platform",
        "comm_protocol": settings.comm_protocol,
        "checkpoint_path": checkpoint_path(settings),
        "host": settings.host if over_http else None,
        "port": settings.port if over_http else None,
        "model_name": model,
        "ds_config": jobs.deepspeed_config(settings, job),
        "vllm_config": jobs.vllm_config(settings, job),
        "log_prob_ds_config": jobs.log_prob_config(settings),
        "ds_worker_config": jobs.worker_config(settings, job),
        "arctic_inference_config": jobs.inference_config(settings),
        "full_determinism": settings.full_determinism,
        "seed": settings.seed,
        **_sizes(settings, job),
        "log_prob_engine": settings.log_prob_engine,
        "colocate": settings.colocate,
        "server_logs": settings.server_logs,
        "ray_auto_attach": settings.ray_auto_attach,
        "startup_timeout": settings.startup_timeout_s,
        "job_ready_timeout": settings.job_ready_timeout_s,
        **_job_ids(settings),
    }
    if release.has_safe_codec:  # both came with it
        config |= {"cuda_ipc": settings.cuda_ipc, "low_memory": settings.low_memory}
    return config


def _sizes(settings: ArcticSettings, job: JobSpec) -> Config:
    return {
        "training_gpus": settings.training_gpus,
        "sampling_gpus": settings.sampling_gpus,
        "log_prob_gpus": jobs.log_prob_gpus(settings, job),
    }


def _job_ids(settings: ArcticSettings) -> Config:
    return {name: getattr(settings, name) for name in ("training_job_id", "sampling_job_id", "log_prob_job_id")}


def checkpoint_path(settings: ArcticSettings) -> str:
    """Absolute, since the server may stand in another folder."""
    return str(Path(settings.checkpoint_path).expanduser().absolute())
