"""What the adapter refuses before a run, and what it sends: configurations, payloads and choices, without a server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlctl.backends.arctic import calls, connecting, jobs
from rlctl.backends.arctic import installed as installing
from rlctl.backends.arctic.backend import ArcticBackend
from rlctl.backends.arctic.calls import ClientThread
from rlctl.backends.arctic.installed import find_release
from rlctl.backends.arctic.model import ModelFacts
from rlctl.backends.arctic.settings import ArcticSettings
from rlctl.backends.arctic.texts import Texts
from rlctl.errors import BackendError, BackendUnavailable, ConfigError
from rlctl.settings import Settings
from rlctl.types import JobSpec, Prompt
from tests.tiny import byte_tokenizer

ROOT = Path(__file__).parents[2]


def job(*, steps: int = 20, **changes: Any) -> JobSpec:
    """The job of the default settings with changes by dotted name."""
    tree: dict[str, Any] = {}
    for name, value in changes.items():
        block, _, field = name.partition("__")
        tree.setdefault(block, {})[field] = value
    settings = Settings(**tree)
    return replace(settings.job(model="m", end_token_ids=(1,)), plan=settings.plan(steps=steps))


@pytest.mark.parametrize(
    ("settings", "changes", "told"),
    [
        ({}, {"algorithm__clip_ratio_low": 0.1}, "algorithm.clip_ratio_low = 0.1: the platform's loss ignores it"),
        ({}, {"algorithm__clip_ratio_high": 0.28}, "clip_ratio_high = 0.28: the platform's loss ignores it"),
        ({}, {"algorithm__clip_ratio_c": None}, "clip_ratio_c = null: the platform's loss ignores it and always"),
        ({}, {"algorithm__loss_agg_mode": "seq-mean-token-sum"}, "only token-mean means what it says"),
        ({}, {"algorithm__policy_loss": "gspo"}, "policy_loss = gspo: the platform's loss is the clipped one"),
        ({}, {"algorithm__importance_sampling": "sequence"}, "importance_sampling = sequence: the platform's loss is"),
        ({}, {"algorithm__kl_coef": 0.1, "algorithm__kl_estimator": "k3+"}, "kl_estimator = k3+: the platform has"),
        ({}, {"algorithm__entropy_coeff": 0.1}, "entropy is one token off"),
        ({}, {"model__lora": {"rank": 8}}, "model.lora.rank = 8: the platform trains whole weights only"),
        ({}, {"rollout__top_p": 0.9, "rollout__allow_biased_sampling": True}, "of the filtered distribution"),
        ({"training_gpus": 3}, {}, "256 rows an update"),
        ({"micro_batch_size": 7}, {}, "micro_batch_size = 7 does not divide the 256 rows"),
        ({"zero_stage": 0}, {}, "zero_stage = 0 fails"),
        ({"sampling_gpus": 3, "sampling_tp_size": 2}, {}, "sampling_tp_size = 2 does not divide sampling_gpus = 3"),
        ({"log_prob_gpus": 0}, {"algorithm__kl_coef": 0.1}, "log_prob_gpus = 0"),
        ({"log_prob_engine": "vllm"}, {"algorithm__kl_coef": 0.1}, "does not answer fwd_no_grad"),
        ({"cuda_ipc": True, "colocate": False}, {}, "needs colocate = true"),
        ({"low_memory": True}, {}, "low_memory is a way of cuda_ipc"),
        ({"logits_from_float32": True}, {}, "the platform has it with zorro_train = true only"),
        ({"attn_implementation": "sdpa", "micro_batch_size": 2}, {}, "the rows of a micro-batch see each other"),
        ({"deepspeed": {"gradient_accumulation_steps": 4}}, {}, "gradient_accumulation_steps follow from the run"),
        ({"sleep_training": True, "colocate": False}, {}, "sleep_training makes room for a colocated sampler"),
        ({"host": "far.example"}, {}, "a server can only be started on this machine"),
        ({"training_job_id": 1}, {}, "needs both training_job_id and sampling_job_id"),
        ({"training_job_id": 1, "sampling_job_id": 2, "comm_protocol": "ray"}, {}, "over http only"),
        ({"seeded_sampling": True, "samples_per_request": 8}, {}, "each sample is a request of its own"),
        ({}, {"trainer__max_tokens_per_device": 1000}, "max_tokens_per_device = 1000 is less than one row"),
    ],
)
def test_what_the_platform_would_ignore_or_break_on_is_refused_with_the_reason(
    settings: Any, changes: Any, told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ArcticBackend(ArcticSettings(**settings), job(**changes))
    assert told in caught.value.message


def test_all_reasons_come_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        ArcticBackend(ArcticSettings(zero_stage=0), job(algorithm__clip_ratio_low=0.1, algorithm__clip_ratio_high=0.3))
    assert len(caught.value.message.splitlines()) == 3


def test_reasons_of_the_installed_release_come_with_the_others(installed: Any) -> None:
    installed("v012")
    with pytest.raises(ConfigError) as caught:
        ArcticBackend(ArcticSettings(blocking_calls=True, zero_stage=0), job())
    assert "has no blocking twin" in caught.value.message
    assert "zero_stage = 0 fails" in caught.value.message


def test_the_defaults_are_not_refused() -> None:
    ArcticBackend(ArcticSettings(), job())


@pytest.mark.parametrize(
    ("release", "settings", "told"),
    [
        ("v012", {"launch_server": False}, "destroys every job that the server"),
        ("v012", {"blocking_calls": True}, "has no blocking twin"),
        ("v012", {"cuda_visible_devices": "0"}, "cannot pass it to a server"),
        ("v012", {"cuda_ipc": True, "low_memory": True}, "has it over ray only"),
        ("head", {"client": "legacy", "launch_server": False}, "destroys every job that the server"),
        ("head", {"server_logs": False}, "the unified client cannot tell a server"),
    ],
)
def test_the_legacy_clients_dangers_need_an_explicit_setting(
    release: str, settings: Any, told: str, installed: Any
) -> None:
    installed(release)
    with pytest.raises(ConfigError, match=told):
        connecting.client_of_release(ArcticSettings(**settings), job(), model="m")


def test_the_client_follows_from_what_is_installed(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("head")
    assert find_release().flavour(ArcticSettings()) == "unified"
    assert find_release().flavour(ArcticSettings(client="legacy")) == "legacy"
    installed("v012")
    release = find_release()
    assert (release.has_unified, release.has_safe_codec) == (False, False)
    assert release.flavour(ArcticSettings()) == "legacy"
    with pytest.raises(BackendUnavailable, match=r"has no client/client\.py"):
        release.flavour(ArcticSettings(client="unified"))


def test_nothing_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable) as caught:
        find_release()
    assert caught.value.hint == "pip install 'rlctl[arctic]' && pip install --no-deps arctic-platform"


@pytest.mark.parametrize(
    ("release", "why"), [("v012", "destroy its jobs"), ("head", "the one that is to be started would not get the port")]
)
def test_no_server_is_started_where_one_listens(release: str, why: str, installed: Any) -> None:
    installed(release)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = ArcticSettings(port=taken.getsockname()[1])
        build, _, _ = connecting.client_of_release(settings, job(), model="m")
        with pytest.raises(BackendUnavailable, match=f"answers at localhost:.*{why}"):
            build()


def test_an_environment_that_asks_for_unpickling_is_refused(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("v012")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with pytest.raises(ConfigError, match="would unpickle whatever a server sends"):
        connecting.client_of_release(ArcticSettings(), job(), model="m")


def test_both_configurations_are_json_and_fit_their_classes(installed: Any) -> None:
    installed("head")
    from arctic_platform.client import ArcticRLClientConfig as Unified
    from arctic_platform.rl.config import ArcticRLClientConfig as Legacy

    settings = ArcticSettings(training_gpus=2, cuda_ipc=True, zorro_train=True)
    unified = connecting.unified_config(settings, job(), model="m")
    legacy = connecting.legacy_config(settings, job(), model="m", release=find_release())
    assert json.loads(json.dumps(unified)) == unified
    assert json.loads(json.dumps(legacy)) == legacy
    filled = Unified(**unified)
    assert (filled.backend.colocate, filled.backend.launch_local_server, filled.backend.port) == (True, True, 7000)
    assert legacy.keys() <= Legacy.model_fields.keys()
    assert legacy["colocate"] is True
    assert unified["training"]["ds_worker_config"]["logits_optimization"] == "memory"
    assert {"cuda_ipc", "low_memory"} <= legacy.keys()
    v012 = replace(find_release(), has_safe_codec=False)
    assert not {"cuda_ipc", "low_memory"} & connecting.legacy_config(settings, job(), model="m", release=v012).keys()


def test_a_configuration_that_a_release_refuses_is_told_field_by_field(installed: Any) -> None:
    installed("head")
    from arctic_platform.client import ArcticRLClientConfig

    with pytest.raises(ConfigError, match=r"backend\.port: Input should be a valid integer"):
        connecting._filled(ArcticRLClientConfig, {"model_name": "m", "backend": {"port": "x"}})


@pytest.mark.parametrize(
    ("tiled", "zorro", "sent"), [(1, 1, "memory"), (1, 0, "compute"), (0, 1, "none"), (0, 0, "none")]
)
def test_tiles_of_logits_go_under_the_platforms_name(tiled: int, zorro: int, sent: str) -> None:
    settings = ArcticSettings(tiled_logits_compute=bool(tiled), zorro_train=bool(zorro))
    assert jobs.worker_config(settings, job())["logits_optimization"] == sent


@pytest.mark.parametrize(("kind", "zorro", "told"), [("qwen3", 1, False), ("llama", 0, False), ("llama", 1, True)])
def test_shared_prompts_are_warned_of_where_the_platform_may_lack_them(kind: str, zorro: int, told: bool) -> None:
    facts = ModelFacts(kind, None, 10, 10, None)
    assert (facts.told_of_zorro(ArcticSettings(zorro_train=bool(zorro))) is not None) == told


def test_a_sampling_that_the_client_gave_up_names_the_setting_that_makes_it_shorter() -> None:
    assert "remote_backend.arctic.samples_per_request" in str(calls.told("generate", TimeoutError()).hint)
    assert "samples_per_request" not in str(calls.told("step", TimeoutError()).hint)


def test_micro_batches_fill_the_token_budget_and_divide_the_rows() -> None:
    settings = ArcticSettings(training_gpus=2)
    config = jobs.deepspeed_config(settings, job(trainer__max_tokens_per_device=5 * 2048))
    # 256 rows on 2 GPUs; 5 rows of 1024 + 1024 tokens fit, 4 is the largest size that divides 128.
    assert config["train_micro_batch_size_per_gpu"] == 4
    assert config["gradient_accumulation_steps"] == 32
    assert config["train_batch_size"] == 256
    # Without flash attention the rows of a micro-batch, which are joined to one sequence, would see each other.
    assert jobs.micro_batch_size(ArcticSettings(attn_implementation="sdpa"), job()) == 1
    over = ArcticSettings(deepspeed={"zero_optimization": {"overlap_comm": True}})
    assert jobs.deepspeed_config(over, job())["zero_optimization"] == {"stage": 2, "overlap_comm": True}


def test_no_micro_batch_of_a_scoring_is_larger_than_the_token_budget() -> None:
    told = job(trainer__max_tokens_per_device=5 * 2048, algorithm__kl_coef=0.1)
    settings = ArcticSettings(training_gpus=2, log_prob_gpus=3)
    assert jobs.rows_per_scoring(settings, told, reference=False) == 256  # which the trainer cuts by itself
    assert jobs.rows_per_scoring(settings, told, reference=True) == 3 * 5  # the reference takes a rank's rows at once
    eager = ArcticSettings(attn_implementation="eager", log_prob_gpus=3)
    assert jobs.rows_per_scoring(eager, told, reference=True) == 3
    assert jobs.rows_per_scoring(eager, replace(told, plan=None), reference=False) is None


@pytest.mark.parametrize(
    ("changes", "kind", "warmup"),
    [
        ({}, None, 0),
        ({"trainer__warmup_ratio": 0.05}, None, 0),  # one update, at the peak already
        ({"trainer__warmup_ratio": 0.2}, "WarmupLR", 4),
        ({"trainer__lr_schedule": "linear", "trainer__warmup_ratio": 0.1}, "WarmupDecayLR", 2),
        ({"trainer__lr_schedule": "cosine"}, "WarmupCosineLR", 0),
        ({"trainer__warmup_ratio": 0.05, "trainer__mini_batch_size": 16}, "WarmupLR", 2),
    ],
)
def test_the_schedule_is_deepspeeds_in_updates(changes: Any, kind: str | None, warmup: int) -> None:
    schedule = jobs.deepspeed_config(ArcticSettings(), job(**changes)).get("scheduler")
    assert (schedule and schedule["type"]) == kind
    if schedule:
        assert schedule["params"]["warmup_num_steps"] == warmup


def test_a_prompt_is_sent_as_a_text_that_encodes_to_its_ids() -> None:
    texts = Texts(byte_tokenizer())
    ids = [258, *b"user: hi\n", 258, *b"assistant: "]
    assert texts.of(Prompt(np.array(ids, np.int32), 0)) == "<|start|>user: hi\n<|start|>assistant: "
    with pytest.raises(BackendError, match="a prompt of 2 tokens cannot be sent"):
        texts.of(Prompt(np.array([0xC3, 0x28], np.int32), 0))  # half of a letter: no text has these bytes


@pytest.mark.parametrize("after_500", [True, False])
def test_a_dropped_connection_is_tried_again_only_after_an_error_500(after_500: bool) -> None:
    class ClientResponseError(Exception):
        status = 500 if after_500 else 503

    class Client:
        calls = 0

        async def step(self) -> str:
            self.calls += 1
            if self.calls == 1:
                raise ClientResponseError("Internal Server Error")
            if self.calls == 2:
                raise ConnectionResetError("closed")
            return "done"

    async def twice() -> str:
        thread = ClientThread(timeout_s=10)
        await thread.connect(Client)
        try:
            with pytest.raises(BackendError, match="step failed: ClientResponseError"):
                await thread.call("step")
            return str(await thread.call("step"))
        finally:
            await thread.close(method=None, timeout_s=1)

    if after_500:
        assert asyncio.run(twice()) == "done"
    else:
        with pytest.raises(BackendError, match="step failed: ConnectionResetError"):
            asyncio.run(twice())


def test_the_jobs_are_destroyed_after_an_error_500_that_closed_the_connection() -> None:
    class ClientResponseError(Exception):
        status = 500

    class Client:
        """Keeps silent about a job that it could not destroy, as the platform's do."""

        is_closed, jobs = False, 1

        def post(self) -> None:
            if self.is_closed:
                self.is_closed = False
                raise ConnectionResetError("closed")

        async def step(self) -> None:
            self.is_closed = True
            raise ClientResponseError("Internal Server Error")

        async def reset_prefix_cache(self) -> None:
            self.post()

        def shutdown(self) -> None:
            with contextlib.suppress(OSError):
                self.post()
                self.jobs = 0

    client = Client()

    async def fail_and_close() -> None:
        thread = ClientThread(timeout_s=10)
        await thread.connect(lambda: client)
        with pytest.raises(BackendError, match="step failed: ClientResponseError"):
            await thread.call("step")
        assert await thread.close(method="shutdown", timeout_s=5) is None

    asyncio.run(fail_and_close())
    assert client.jobs == 0


def test_deleting_the_folder_and_one_line_removes_the_backend(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "rlctl", tmp_path / "rlctl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(tmp_path / "rlctl" / "backends" / "arctic")
    line = 'arctic = "rlctl.backends.arctic.register"'
    assert (ROOT / "pyproject.toml").read_text().splitlines().count(line) == 1
    code = (
        "from rlctl.backends import registry; registry._entry_points = tuple; from rlctl.settings import Settings; "
        "from rlctl import loop, prepare, verdict, config; import rlctl; print(rlctl.__file__, registry.names())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False,
                          env={"PYTHONPATH": str(tmp_path), "PATH": ""})  # fmt: skip
    assert done.stdout.strip() == f"{tmp_path / 'rlctl' / '__init__.py'} ['http', 'local', 'ray']", done.stderr
