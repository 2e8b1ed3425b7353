"""Ten thousand bodies that no client sends: each is answered by what is wrong with it, and the server goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlctl import __version__
from rlctl.backends.http import codec, messages
from rlctl.backends.http.failures import Failure
from rlctl.backends.http.frames import FAILURE, RESULT, Reader
from rlctl.backends.http.server.app import app_of
from rlctl.backends.http.server.guard import Guard
from rlctl.backends.http.server.sessions import Host
from rlctl.backends.local.backend import LocalBackend
from rlctl.backends.local.settings import LocalSettings
from rlctl.types import Prompt, Sampling, TrainRow
from tests.backends.test_contract import JOB, LOSS
from tests.http.servers import TOKEN

EXAMPLES, BODIES = 200, 50
"""10,000 bodies: so many examples of so many each."""


class Fuzzed:
    """The application in this process, so that an exception in it is one here; a session is open and started."""

    def __init__(self, model: Path, spool: Path) -> None:
        self.runner = asyncio.Runner()
        self.job = replace(JOB, model=str(model))
        host = Host(
            lambda job: LocalBackend(LocalSettings(dtype="float32"), job),
            name="local", lease_s=3600, spool=spool, max_body_bytes=2**16,
        )  # fmt: skip
        app = Guard(app_of(host, beat_s=1.0), token=TOKEN, limit_of=lambda path: 2**20, body_timeout_s=5.0)
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=True),
            base_url="http://server",
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        self.keys = 0
        opened = self.ask("POST", "/sessions", codec.encode(self.opening()))
        self.session = codec.decode(opened.content, messages.Opened).session
        assert self.verb("start", codec.encode(messages.Start()))[0] == RESULT
        self.saved = codec.decode(self.verb("save", codec.encode(messages.Save()))[1], messages.Folder).folder

    def close(self) -> None:
        assert self.ask("DELETE", f"/sessions/{self.session}", b"").status_code == 204
        self.runner.run(self.client.aclose())
        self.runner.close()

    def opening(self) -> messages.Open:
        return messages.Open(messages.PROTOCOL, __version__, "the fuzzer", self.job)

    def ask(self, method: str, path: str, body: bytes, **headers: str) -> httpx.Response:
        self.keys += 1
        given = {messages.KEY: f"key-{self.keys}", **headers}
        return self.runner.run(self.client.request(method, path, content=body, headers=given))

    def verb(self, name: str, body: bytes, **headers: str) -> tuple[int, bytes]:
        """(how the reply ended, its last frame) of a verb that was begun, or (its status, its failure)."""
        response = self.ask("POST", f"/sessions/{self.session}/verbs/{name}", body, **headers)
        if response.status_code != 200:
            return response.status_code, response.content
        *_, last = Reader(2**30).feed(response.content)
        return last.kind, last.payload


@pytest.fixture(scope="module")
def fuzzed(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    fuzzed = Fuzzed(tiny_llama, tmp_path_factory.mktemp("spool"))
    yield fuzzed
    fuzzed.close()


def bodies() -> dict[str, bytes]:
    """One that each verb takes, small, for mutations to start from."""
    ids, logprobs = np.arange(5, 9, dtype=np.int32), -np.ones(4, dtype=np.float32)
    row = TrainRow(
        ids[:2],
        ids,
        1.0,
        logprobs,
        old_logprobs=logprobs,
        token_advantages=-logprobs,
        selected=np.array([True] * 4),
        policy_mask=np.array([True, False, True, True]),
    )
    loss = replace(LOSS, policy_loss="clip_cov", token_advantages=True)
    requests: dict[str, Any] = {
        "generate": messages.Generate([Prompt(ids, 7)], 2, Sampling(1.0, 0.9, 5, 0.1, 3)),
        "log_probs": messages.LogProbsOf([row], False),
        "forward_backward": messages.ForwardBackward([row, row], loss, 8.0),
        "optim_step": messages.OptimStep(0.0),
        "sync_weights": messages.SyncWeights(),
        "written": messages.Written("0" * 12),
        "load": messages.Load("0" * 12),
        "stacks": messages.Stacks(),
    }
    return {name: codec.encode(request) for name, request in requests.items()}


ODD: list[Any] = [
    None, True, -1, 0, 2**31, 2**63, -(2**63), 2**64 - 1, 0.0, -0.5, 1e308, float("inf"), float("nan"), "", "x" * 300,
    "gspo",
    "../../etc/passwd", "\x00", b"", b"\xff" * 9, [], [[]] * 40, {}, {"": {}}, {"n": 1},
    msgspec.msgpack.Ext(1, b"abc"), msgspec.msgpack.Ext(1, b"\xff\xff\xff\x7f" * 3), msgspec.msgpack.Ext(2, b""),
    msgspec.msgpack.Ext(2, b"\x00\x00\xc0\x7f" * 4), msgspec.msgpack.Ext(77, b"os.system"),
    msgspec.msgpack.Ext(-1, b"\x00" * 4),
]  # fmt: skip


def mutated(body: bytes, chance: random.Random) -> bytes:
    """The body with bytes changed, or with one of its values replaced by an odd one."""
    if chance.random() < 0.3:
        data = bytearray(body)
        for _ in range(chance.randint(1, 4)):
            kind, at = chance.randrange(4), chance.randrange(len(data) + 1)
            if kind == 0 and at < len(data):
                data[at] = chance.randrange(256)
            elif kind == 1:
                del data[at : at + chance.randint(1, 9)]
            elif kind == 2:
                data[at:at] = chance.randbytes(chance.randint(1, 9))
            else:
                data[at:at] = data[: chance.randint(0, 40)]
        return bytes(data)
    tree = msgspec.msgpack.decode(body)
    for _ in range(chance.randint(1, 3)):
        tree = replaced(tree, chance)
    return msgspec.msgpack.encode(tree)


def replaced(tree: Any, chance: random.Random) -> Any:
    if not isinstance(tree, dict | list) or not tree or chance.random() < 0.15:
        return chance.choice(ODD)
    if isinstance(tree, dict):
        name = chance.choice(list(tree))
        if chance.random() < 0.1:
            return {key: value for key, value in tree.items() if key != name}
        return {**tree, name: replaced(tree[name], chance)}
    at = chance.randrange(len(tree))
    if chance.random() < 0.1:
        return tree * chance.randint(2, 4)
    return [*tree[:at], replaced(tree[at], chance), *tree[at + 1 :]]


HARMLESS = (RESULT, FAILURE)
"""A mutation may leave a body that makes sense; then the verb is carried out, and fails or not."""


@pytest.mark.slow
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_body_that_is_no_request_is_answered_by_what_is_wrong(fuzzed: Fuzzed, seed: int) -> None:
    chance, known = random.Random(seed), bodies()
    for _ in range(BODIES):
        name = chance.choice(list(known))
        body = mutated(known[name], chance)
        how, said = fuzzed.verb(name, body)
        assert 400 <= how < 500 or how in HARMLESS, (name, body, how, said)
        if how != RESULT:
            failure = codec.decode(said, Failure)
            assert "the server failed" not in failure.message, (name, body, failure)
    # A body may have asked for a learning rate that breaks the weights, which is the client's own affair.
    how, said = fuzzed.verb("load", codec.encode(messages.Load(fuzzed.saved)))
    assert how == RESULT, said
    how, said = fuzzed.verb("generate", known["generate"])
    assert how == RESULT, said


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]),
    path=st.lists(
        st.sampled_from(
            ["sessions", "S", "verbs", "folders", "beat", "..", "%2e%2e", "%00", "start", "save", "a" * 300]
        ),
        max_size=6,
    ),
    body=st.binary(max_size=200),
    key=st.sampled_from(["k", "", "k" * 65, "key-1"]),
    encoding=st.sampled_from(["", "zstd", "gzip", "zstd, zstd"]),
)
def test_a_road_that_does_not_exist_leads_nowhere(
    fuzzed: Fuzzed, method: str, path: list[str], body: bytes, key: str, encoding: str
) -> None:
    parts = [fuzzed.session if part == "S" else part for part in path]
    if parts == ["sessions", fuzzed.session] or parts[-1:] in (["start"], ["save"], ["beat"], ["folders"]):
        return  # which are right
    response = fuzzed.ask(method, "/" + "/".join(parts), body, **{messages.KEY: key, "Content-Encoding": encoding})
    assert 400 <= response.status_code < 500


@pytest.mark.parametrize("size", [2**16 + 1, 2**33])
def test_a_body_that_grows_when_decompressed_is_refused_before_it_does(fuzzed: Fuzzed, size: int) -> None:
    compressor = zstandard.ZstdCompressor(level=1)
    if size < 2**20:
        bomb = compressor.compress(b"\x00" * size)
    else:  # a frame that only says it is that large
        bomb = compressor.compress(b"\x00" * 2**16)
        header = zstandard.get_frame_parameters(bomb)
        assert header.content_size == 2**16
        bomb = bomb[:4] + b"\xc0\x38" + size.to_bytes(8, "little") + bomb[9:]
    how, said = fuzzed.verb("generate", bomb, **{"Content-Encoding": "zstd"})
    assert how == 400, said


def test_a_body_that_says_no_size_is_decompressed_up_to_the_limit(fuzzed: Fuzzed) -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    bomb = compressor.compress(b"\x00" * 2**24) + compressor.flush()
    how, said = fuzzed.verb("generate", bomb, **{"Content-Encoding": "zstd"})
    assert how == 400, said


def test_a_session_is_not_opened_for_a_job_that_makes_no_sense(fuzzed: Fuzzed) -> None:
    chance, opening = random.Random(5), codec.encode(fuzzed.opening())
    for _ in range(300):
        response = fuzzed.ask("POST", "/sessions", mutated(opening, chance))
        # 409: it made sense, and the session is held.
        assert 400 <= response.status_code < 500
        assert "the server failed" not in codec.decode(response.content, Failure).message
