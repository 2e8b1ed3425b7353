"""Each verb is carried out once for its key, however often it is asked for.

first time      a task begins; its parts and its end are kept
asked again     the same task is waited for, or its reply sent once more: a lost reply costs nothing
acknowledged    the client has the reply, and it is forgotten; asking for it once more is an error
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field

from rlctl.backends.http.frames import BEAT, FAILURE, PART, RESULT, Frame
from rlctl.backends.http.messages import TRAINING
from rlctl.errors import BackendError

Tell = Callable[[bytes], None]
"""Sends a part of the reply; may be called from any thread."""
Work = Callable[[Tell], Awaitable[bytes]]
"""Carries a verb out and gives the reply."""

MOST_REPLIES = 64
"""Replies kept for a client that acknowledges none: rlctl's own does so with every call."""


@dataclass
class Call:
    """One key: what has been said so far, and the end once it is there."""

    verb: str
    began: float = field(default_factory=time.monotonic)
    parts: list[bytes] = field(default_factory=list)
    end: Frame | None = None
    task: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, part: bytes) -> None:
        self.parts.append(part)
        self.changed.set()


class Turns:
    """Whose turn it is. There are two sides, and most verbs need both; with `overlaps`, `generate` and training verbs
    need one each."""

    def __init__(self, *, overlaps: bool) -> None:
        self.overlaps = overlaps
        self._line, self._sampling, self._training = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()

    @asynccontextmanager
    async def of(self, verb: str) -> AsyncIterator[None]:
        """The verb's turn: after those before it that need the same side."""
        async with AsyncExitStack() as sides:
            # Whoever waits for a side stands in line, and is not overtaken by one that needs the other alone.
            async with self._line:
                if not (self.overlaps and verb in TRAINING):
                    await sides.enter_async_context(self._sampling)
                if not (self.overlaps and verb == "generate"):
                    await sides.enter_async_context(self._training)
            yield


class Calls:
    """The calls of one session, carried out one after the other in the order in which they came; with `overlaps`,
    sampling beside training."""

    def __init__(self, *, failed: Callable[[str, Exception], bytes], overlaps: bool = False) -> None:
        """`failed` turns the error of a verb into what the client is told."""
        self.by_key: dict[str, Call] = {}
        self._forgotten: set[str] = set()
        self._failed = failed
        self._turns = Turns(overlaps=overlaps)

    @property
    def running(self) -> str:
        """The verb that is being carried out, or nothing."""
        return next((call.verb for call in self.by_key.values() if call.end is None), "")

    def known(self, key: str, verb: str) -> Call | None:
        """The call of that key; None where it is new. Raises BackendError for one whose reply is gone."""
        call = self.by_key.get(key)
        if call is not None and call.verb != verb:
            raise BackendError(f"the key of a {call.verb} came again with a {verb}.")
        if key in self._forgotten:
            raise BackendError(f"this {verb} was carried out and its reply acknowledged; it cannot be told again.")
        return call

    def once(self, key: str, verb: str, work: Work, *, in_turn: bool) -> Call:
        """The call of that key, begun when it is new; without `in_turn` beside the others. Raises as `known`."""
        if (call := self.known(key, verb)) is not None:
            return call
        if len(self.by_key) >= MOST_REPLIES:
            self.acknowledge(key for key, call in list(self.by_key.items()) if call.end is not None)
        call = self.by_key[key] = Call(verb)
        call.task = asyncio.create_task(self._carry_out(call, work, self._turns.of(verb) if in_turn else nullcontext()))
        return call

    def acknowledge(self, keys: Iterable[str]) -> None:
        """Forget replies that have arrived."""
        for key in keys:
            call = self.by_key.get(key)
            if call is not None and call.end is not None:
                del self.by_key[key]
                self._forgotten.add(key)

    async def _carry_out(self, call: Call, work: Work, turn: AbstractAsyncContextManager[None]) -> None:
        loop = asyncio.get_running_loop()

        def tell(part: bytes) -> None:
            loop.call_soon_threadsafe(call.tell, part)

        try:
            async with turn:
                reply = await work(tell)
            # Behind the parts that another thread has sent on their way.
            await asyncio.sleep(0)
            call.end = Frame(RESULT, reply)
        except asyncio.CancelledError:
            call.end = Frame(FAILURE, self._failed(call.verb, BackendError("the session was closed meanwhile.")))
            raise
        except Exception as error:  # the server's outermost boundary: reported to its log and to the client
            call.end = Frame(FAILURE, self._failed(call.verb, error))
        finally:
            call.changed.set()

    async def cancel(self) -> None:
        """End what is running; those who wait are told."""
        tasks = [call.task for call in self.by_key.values() if call.task is not None and not call.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def frames(call: Call, *, beat_s: float) -> AsyncIterator[bytes]:
    """All that is said of a call, from its first part on, with a beat after each silence of `beat_s` seconds."""
    sent = 0
    while True:
        call.changed.clear()
        end = call.end
        while sent < len(call.parts):
            yield Frame(PART, call.parts[sent]).bytes()
            sent += 1
        if end is not None:
            yield end.bytes()
            return
        try:
            async with asyncio.timeout(beat_s):
                await call.changed.wait()
        except TimeoutError:
            yield Frame(BEAT).bytes()
