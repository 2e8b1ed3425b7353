"""What becomes of a run when the road to its server, the server, or the run itself breaks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rlctl.backends.http.backend import HttpBackend
from rlctl.errors import BackendBusy, BackendError, Stalled
from tests.backends.test_contract import LOSS, SAMPLING, num_tokens, prompts, rows_of
from tests.http import servers
from tests.http.servers import TOKEN, Proxy, Server


def job(tiny_llama: Path, **changes: Any) -> Any:
    from tests.backends.test_contract import JOB

    return replace(JOB, model=str(tiny_llama), **changes)


async def a_step(backend: HttpBackend) -> tuple[Any, Any]:
    """Sample, one gradient, one update: (log-probs of the samples, the update)."""
    asked = prompts(1, 2)
    rows = rows_of(asked, await backend.generate(asked, n=4, sampling=SAMPLING))
    await backend.forward_backward(rows, loss=LOSS, loss_denominator=num_tokens(rows))
    stats = await backend.optim_step(1e-2)
    await backend.sync_weights()
    return await backend.log_probs(rows), stats


async def with_backend(server: Server, work: Any, tiny_llama: Path, **settings: object) -> Any:
    backend = servers.client(server.url, job(tiny_llama), **settings)
    try:
        await backend.start()
        return await work(backend)
    finally:
        await backend.close()


def through_a_proxy(server: Server, work: Any, tiny_llama: Path, cut: Any) -> tuple[Any, int]:
    """What `work` gives on a connection that `cut` breaks, and how often it was broken."""

    async def run() -> tuple[Any, int]:
        proxy = Proxy(server.url, cut)
        through = replace(server, url=await proxy.start())
        try:
            return await with_backend(through, work, tiny_llama), proxy.cuts
        finally:
            await proxy.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("verb", ["generate", "forward_backward", "optim_step", "sync_weights", "log_probs"])
def test_a_lost_reply_is_asked_for_again_and_the_verb_carried_out_once(
    http_server: Server, tiny_llama: Path, verb: str
) -> None:
    broken: list[bytes] = []

    def cut(data: bytes, from_server: bool) -> bool:  # a seam of the test's own
        """The request gets through; the first bytes of its reply do not, twice."""
        if not from_server and f"/verbs/{verb} ".encode() in data:
            broken.append(b"")
        if from_server and broken and len(broken) <= 2 and not broken[-1]:
            broken[-1] = data
            return True
        return False

    (found, stats), cuts = through_a_proxy(http_server, a_step, tiny_llama, cut)
    expected, expected_stats = asyncio.run(with_backend(http_server, a_step, tiny_llama))
    assert cuts == 2
    assert stats.grad_norm == expected_stats.grad_norm
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.fixture(scope="module")
def strict(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with short patience and small bodies."""
    server = servers.start(
        tmp_path_factory.mktemp("strict"), f'serve.models=["{tiny_llama}"]', "local.dtype=float32", "serve.lease_s=3",
        "serve.max_body_mb=1", "serve.body_timeout_s=0.5",
    )  # fmt: skip
    yield server
    server.end()


def test_a_server_that_is_killed_started_again_and_ended_says_so_each_time(tiny_llama: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    given = (f'serve.models=["{tiny_llama}"]', "local.dtype=float32", f"serve.spool_dir={spool}",
             "serve.shutdown_grace_s=0.3")  # fmt: skip
    server = servers.start(tmp_path, *given)
    port = int(server.url.rpartition(":")[2])

    async def killed_in_mid_verb(backend: HttpBackend) -> None:
        verb = asyncio.create_task(a_long_verb(backend))
        await asyncio.sleep(0.3)
        assert not verb.done()
        server.kill()
        await verb

    async def started_again(backend: HttpBackend) -> None:
        nonlocal server
        server.kill()
        server = servers.start(tmp_path, *given, port=port)
        await a_step(backend)

    async def ended_in_mid_verb(backend: HttpBackend) -> None:
        verb = asyncio.create_task(a_long_verb(backend))
        await asyncio.sleep(0.3)
        os.kill(server.process.pid, signal.SIGTERM)
        await verb

    with pytest.raises(BackendError, match=r"could not be reached for .*Connect"):
        asyncio.run(with_backend(server, killed_in_mid_verb, tiny_llama, reconnect_s=1.0))
    server = servers.start(tmp_path, *given, port=port)
    with pytest.raises(BackendError, match=r"there is no session .* the server was started again"):
        asyncio.run(with_backend(server, started_again, tiny_llama))
    with pytest.raises(BackendError, match="the server is shutting down"):
        asyncio.run(with_backend(server, ended_in_mid_verb, tiny_llama, reconnect_s=1.0))
    assert server.process.wait(60) == 0
    # What was killed could clear up nothing; the one that was ended has.
    assert len(list(spool.iterdir())) == 2


async def a_long_verb(backend: HttpBackend) -> None:
    """Sampling that takes far longer than the test waits for it."""
    long = replace(SAMPLING, max_new_tokens=400)
    await backend.generate(prompts(*range(200)), n=16, sampling=long)


def test_a_verb_that_is_given_up_ends_at_the_server_and_the_next_one_is_carried_out(
    http_server: Server, tiny_llama: Path
) -> None:
    async def given_up(backend: HttpBackend) -> tuple[Any, list[Any]]:
        verb = asyncio.create_task(a_long_verb(backend))
        await asyncio.sleep(0.3)
        assert backend.abandon()
        verb.cancel()
        return await a_step(backend)

    async def too_slow(backend: HttpBackend) -> None:
        await a_long_verb(backend)

    found, stats = asyncio.run(with_backend(http_server, given_up, tiny_llama))
    expected, expected_stats = asyncio.run(with_backend(http_server, a_step, tiny_llama))
    assert stats.grad_norm == expected_stats.grad_norm
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    with pytest.raises(Stalled, match=r"generate at .* took longer than 0.5 s"):
        asyncio.run(with_backend(http_server, too_slow, tiny_llama, request_timeout_s=0.5))


def test_the_lease_of_a_killed_client_ends_and_the_next_one_works(strict: Server, tiny_llama: Path) -> None:
    async def second_in_line() -> Any:
        """Refused while the first is held, in line until its lease ends, then served."""
        gone = servers.client(strict.url, job(tiny_llama))
        await gone.start()
        assert gone._beats is not None
        gone._beats.cancel()  # as a process that was killed: no further word
        with pytest.raises(BackendBusy, match=r"one session: .* holds it"):
            await servers.client(strict.url, job(tiny_llama)).start()
        return await with_backend(strict, a_step, tiny_llama, queue=True)

    _, stats = asyncio.run(second_in_line())
    assert stats.stepped
    assert "its lease of 3 s ended" in strict.log.read_text()


def test_clients_at_the_same_time_are_served_one_after_the_other(strict: Server, tiny_llama: Path) -> None:
    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(with_backend(strict, a_step, tiny_llama, queue=True) for _ in range(3)))

    first, *others = asyncio.run(all_at_once())
    for found, stats in others:
        assert stats.grad_norm == first[1].grad_norm
        assert all(np.array_equal(a, b) for a, b in zip(found, first[0], strict=True))


def ask(server: Server, method: str, path: str, **given: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {TOKEN}", **given.pop("headers", {})}
    return httpx.request(method, server.url + path, headers=headers, **given)


@pytest.mark.parametrize("path", ["/info", "/metrics", "/sessions", "/nowhere", "/sessions/x/verbs/start"])
@pytest.mark.parametrize("token", [None, "", "Bearer wrong", f"Basic {TOKEN}", f"bearer {TOKEN}", "Bearer \xff"])
def test_without_the_token_there_is_nothing_but_401(http_server: Server, path: str, token: str | None) -> None:
    headers = {} if token is None else {"Authorization": token.encode("latin-1")}
    response = httpx.post(http_server.url + path, headers=headers)  # type: ignore[arg-type]
    assert (response.status_code, response.content) == (401, b"")


def test_health_needs_no_token(http_server: Server) -> None:
    assert httpx.get(http_server.url + "/health").json()["protocol"] == 1


def test_a_body_of_a_gigabyte_is_refused_before_it_is_read(http_server: Server) -> None:
    host, _, port = http_server.url.removeprefix("http://").partition(":")

    async def run() -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {2**30}\r\n\r\n"
        writer.write(head.encode())
        line = await reader.readline()
        writer.close()
        return line

    assert b"413" in asyncio.run(run())


def test_a_body_that_grows_past_the_limit_is_cut_off(strict: Server) -> None:
    pieces = (b"x" * 2**16 for _ in range(64))
    assert ask(strict, "POST", "/sessions", content=pieces).status_code == 413
    assert httpx.get(strict.url + "/health").status_code == 200


def test_a_client_that_trickles_is_hung_up_on(strict: Server) -> None:
    host, _, port = strict.url.removeprefix("http://").partition(":")

    async def trickle(first: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(first)
        return await asyncio.wait_for(reader.read(), timeout=60)

    head = f"POST /sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 10\r\n\r\n1"
    assert asyncio.run(trickle(b"POST /sess")) == b""
    assert b"408" in asyncio.run(trickle(head.encode()))
    assert httpx.get(strict.url + "/health").status_code == 200


def test_a_model_that_is_not_lent_is_refused(http_server: Server, tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tiny_llama.parent)
    for model in ("/etc", str(tiny_llama / "../.."), str(tmp_path), "some/id"):

        async def run(path: str = model) -> None:
            backend = servers.client(http_server.url, job(Path(path)))
            try:
                await backend.start()
            finally:
                await backend.close()

        with pytest.raises(BaseException, match="does not lend"):
            asyncio.run(run())
