"""Who holds the server, for how long, and what is left of a session that ended."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlctl import __version__, config
from rlctl.backends.base import AnyBackend
from rlctl.backends.http import codec, messages
from rlctl.backends.http.server.calls import Calls, Turns, frames
from rlctl.backends.http.server.serving import _maker
from rlctl.backends.http.server.sessions import Host
from rlctl.backends.http.server.verbs import work_of
from rlctl.backends.local.backend import LocalBackend
from rlctl.backends.local.settings import LocalSettings
from rlctl.errors import BackendBusy, BackendError, BackendUnavailable, ConfigError
from rlctl.types import JobSpec
from tests.backends.test_contract import JOB


def opening(job: JobSpec, **changes: Any) -> messages.Open:
    given = {"protocol": messages.PROTOCOL, "version": __version__, "client": "somebody", "job": job, **changes}
    return messages.Open(**given)


class Hosted:
    """A host of local backends in this process; `made` are the backends that it made."""

    def __init__(self, model: Path, spool: Path, *, lease_s: float = 60.0) -> None:
        self.job = replace(JOB, model=str(model))
        self.made: list[weakref.ref[AnyBackend]] = []
        self.host = Host(self._make, name="local", lease_s=lease_s, spool=spool, max_body_bytes=2**20)

    def _make(self, job: JobSpec) -> AnyBackend:
        backend = LocalBackend(LocalSettings(dtype="float32"), job)
        self.made.append(weakref.ref(backend))
        return backend

    async def opened(self, *, ticket: str, **changes: Any) -> messages.Opened:
        return await self.host.open(opening(self.job, **changes), ticket=ticket)

    async def start(self, session: str) -> None:
        held = self.host.session(session)
        await work_of(held, "start", codec.encode(messages.Start()))(lambda part: None)


@pytest.fixture
def hosted(tiny_llama: Path, tmp_path: Path) -> Hosted:
    return Hosted(tiny_llama, tmp_path)


def test_a_lease_that_ends_frees_the_model_and_the_files(tiny_llama: Path, tmp_path: Path) -> None:
    hosted = Hosted(tiny_llama, tmp_path, lease_s=0.2)

    async def run() -> None:
        opened = await hosted.opened(ticket="one")
        await hosted.start(opened.session)
        hosted.host.session(opened.session).files.new()
        watch = asyncio.create_task(hosted.host.watch_leases())
        while hosted.host.held is not None:
            await asyncio.sleep(0.02)
        watch.cancel()

    asyncio.run(run())
    gc.collect()
    assert [backend() for backend in hosted.made] == [None]
    assert list(tmp_path.iterdir()) == []


def test_a_lost_reply_to_opening_does_not_open_twice(hosted: Hosted) -> None:
    async def run() -> None:
        first = await hosted.opened(ticket="one")
        assert (await hosted.opened(ticket="one")).session == first.session
        assert len(hosted.made) == 1

    asyncio.run(run())


def test_those_who_wait_are_served_in_the_order_in_which_they_came(hosted: Hosted) -> None:
    async def run() -> None:
        first = await hosted.opened(ticket="one")
        for ticket in ("two", "three"):
            with pytest.raises(BackendBusy, match=f"somebody holds it in session {first.session}"):
                await hosted.opened(ticket=ticket, queue=True)
        with pytest.raises(BackendBusy) as refused:
            await hosted.opened(ticket="four")
        assert "--queue" in refused.value.hint
        await hosted.host.close(hosted.host.session(first.session), why="done")
        for ticket in ("four", "three"):
            with pytest.raises(BackendBusy, match="others are in line before you"):
                await hosted.opened(ticket=ticket, queue=ticket == "three")
        second = await hosted.opened(ticket="two", queue=True)
        assert second.session != first.session
        await hosted.host.close(hosted.host.session(second.session), why="done")
        await hosted.opened(ticket="three", queue=True)

    asyncio.run(run())


def test_a_session_is_taken_up_by_its_job_and_after_a_silence_only(hosted: Hosted) -> None:
    async def run() -> None:
        opened = await hosted.opened(ticket="one")
        held = hosted.host.session(opened.session)
        with pytest.raises(BackendBusy, match=r"is in use: somebody was heard 0 s ago") as refused:
            await hosted.opened(ticket="two", attach=opened.session)
        assert "in 15 s" in refused.value.hint  # a quarter of the lease
        held.heard -= 16
        other = replace(hosted.job, temperature=0.5, grad_clip=2.0)
        with pytest.raises(ConfigError, match="of another job: temperature, grad_clip differ"):
            await hosted.host.open(opening(other, attach=opened.session), ticket="two")
        taken = await hosted.opened(ticket="two", attach=opened.session)
        assert taken.session == opened.session
        with pytest.raises(BackendError, match="there is no session feedbeef"):
            await hosted.opened(ticket="two", attach="feedbeef")
        assert len(hosted.made) == 1

    asyncio.run(run())


def test_another_protocol_is_refused_with_both_versions(hosted: Hosted) -> None:
    request = opening(hosted.job, protocol=messages.PROTOCOL + 1, version="9.9")
    with pytest.raises(BackendUnavailable, match=rf"rlctl 9.9\) speaks protocol {messages.PROTOCOL + 1}, the server"):
        asyncio.run(hosted.host.open(request, ticket="one"))


def test_calls_of_one_key_are_one_and_verbs_take_turns() -> None:
    async def run() -> None:
        calls = Calls(failed=lambda verb, error: str(error).encode())
        log: list[str] = []

        def work(name: str) -> Any:
            async def carry_out(tell: Any) -> bytes:
                log.append(f"{name} begins")
                await asyncio.sleep(0.01)
                tell(b"part")
                log.append(f"{name} ends")
                return name.encode()

            return carry_out

        first = calls.once("a", "optim_step", work("a"), in_turn=True)
        second = calls.once("b", "optim_step", work("b"), in_turn=True)
        assert calls.once("a", "optim_step", work("never"), in_turn=True) is first
        said = [[frame async for frame in frames(call, beat_s=1.0)] for call in (first, first, second)]
        assert said[0] == said[1] != said[2]
        assert log == ["a begins", "a ends", "b begins", "b ends"]
        with pytest.raises(BackendError, match="the key of a optim_step came again with a load"):
            calls.known("a", "load")
        calls.acknowledge(["a", "unknown"])
        with pytest.raises(BackendError, match="acknowledged; it cannot be told again"):
            calls.known("a", "optim_step")

    asyncio.run(run())


def test_a_long_verb_beats_while_it_runs() -> None:
    async def run() -> None:
        calls = Calls(failed=lambda verb, error: b"")

        async def long(tell: Any) -> bytes:
            await asyncio.sleep(0.2)
            return b"done"

        call = calls.once("a", "generate", long, in_turn=True)
        said = [frame async for frame in frames(call, beat_s=0.02)]
        assert len(said) > 3
        assert len(set(said[:-1])) == 1  # beats, and nothing else

    asyncio.run(run())


def begun(turns: Turns, *verbs: str) -> list[str]:
    """Which of these verbs, asked for in that order and none of them ending, come to their turn."""
    at_work: list[str] = []

    async def carried_out(verb: str) -> None:
        async with turns.of(verb):
            at_work.append(verb)
            await asyncio.Event().wait()

    async def asked() -> list[str]:
        tasks = [asyncio.create_task(carried_out(verb)) for verb in verbs]
        await asyncio.sleep(0.005)
        found = list(at_work)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return found

    return asyncio.run(asked())


@pytest.mark.parametrize("verb", ["log_probs", "forward_backward", "optim_step", "save", "snapshot"])
def test_sampling_runs_beside_training_where_the_hosted_backend_can(verb: str) -> None:
    assert begun(Turns(overlaps=True), "generate", verb, "generate") == ["generate", verb]
    assert begun(Turns(overlaps=True), verb, "generate", verb) == [verb, "generate"]
    assert begun(Turns(overlaps=False), "generate", verb) == ["generate"]


@pytest.mark.parametrize("verb", ["sync_weights", "load", "start"])
def test_no_verb_runs_beside_one_that_changes_what_is_sampled_from(verb: str) -> None:
    assert begun(Turns(overlaps=True), "generate", verb, "optim_step") == ["generate"]
    assert begun(Turns(overlaps=True), verb, "generate", "optim_step") == [verb]


def test_a_server_refuses_a_run_that_samples_beside_training_where_its_backend_takes_turns() -> None:
    settings = config.load(assignments=["backend=local"], environ={}).settings
    plan = settings.plan(steps=1)
    job = replace(JOB, model="embedded:tiny", plan=replace(plan, max_off_policy_steps=1))
    with pytest.raises(ConfigError, match=r"max_off_policy_steps = 1 .*local, hosted by the server, cannot"):
        _maker(settings)(job)
