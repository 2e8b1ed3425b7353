"""The thread in which a foreign client lives, with an event loop of its own.

The platform's methods are declared async and block inside: over HTTP they call `requests`, over Ray `ray.get`.
On the run's own loop that would stop its heartbeat. Here only this thread waits; the run awaits a future.
How each method is called, sync or async, is decided by `calling.call`, as for every client.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from rlctl.backends import calling
from rlctl.errors import BackendError, BackendUnavailable, RlctlError

_DROPPED = frozenset({"ClientOSError", "ServerDisconnectedError", "ClientConnectionResetError", "ConnectionError"})
"""Names of aiohttp's and requests' errors for a connection that was closed from the other side."""
HARMLESS = "reset_prefix_cache"
"""Called before a shutdown that follows an error 500. The connection that the server closed after it fails the next
call, and the clients keep silent about a job that they could not destroy: it would go on, and keep its GPUs."""


class ClientThread:
    """A client, and the thread that calls it. Made without one; `connect` makes it, `close` lets it go."""

    def __init__(self, *, timeout_s: float) -> None:
        self.client: object | None = None
        self._timeout_s = timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting: concurrent.futures.Future[None] | None = None
        self._after_error_500 = False
        """After an error 500 the server closes the connection, which the client only notices at its next call."""

    async def connect(self, build: Callable[[], object]) -> None:
        """Make the client, however long that takes.

        Raises BackendUnavailable when no server answers it, BackendError for whatever else its constructor raises.
        """
        self._connecting = asyncio.run_coroutine_threadsafe(self._made(build), self._running_loop())
        # Shielded: a constructor cannot be interrupted, and whoever closes must get hold of what it made.
        await asyncio.shield(asyncio.wrap_future(self._connecting))

    async def _made(self, build: Callable[[], object]) -> None:
        """A constructor that blocks may run a loop of its own, so it gets a thread without one; if it asks for the
        running loop instead, as aiohttp's sessions do, it is called on this one."""
        try:
            try:
                self.client = await asyncio.to_thread(build)
            except RuntimeError as error:
                if "no running event loop" not in str(error):
                    raise
                self.client = build()
        except RlctlError:
            raise
        except Exception as error:  # foreign code may raise what it likes
            failure = told("client", error)
            if any(was_dropped(each) or isinstance(each, TimeoutError) for each in _with_causes(error)):
                where = "is a server running at remote_backend.arctic.host and port? If it is, look at its log."
                raise BackendUnavailable(failure.message, hint=where) from error
            raise failure from error

    async def call(self, method: str, /, *args: object, **kwargs: object) -> Any:
        """The result of a method of the client. Raises BackendError when it fails, or takes too long."""
        if self.client is None:
            raise BackendError("the arctic backend is not started, or is closed already.")
        future = asyncio.run_coroutine_threadsafe(self._called(method, args, kwargs), self._running_loop())
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout_s)
        except TimeoutError as error:
            raise BackendError(
                f"the platform's {method} gave no answer within {self._timeout_s:g} s.",
                hint="raise remote_backend.arctic.request_timeout_s, or look at the server's log.",
            ) from error

    def runs_side_by_side(self, method: str) -> bool:
        """Whether calls of a method may overlap: a sync client's would share its connection between threads."""
        return calling.style(getattr(self.client, method, None)) in ("async", "ray actor method")

    async def _called(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        retry, self._after_error_500 = self._after_error_500, False
        try:
            try:
                return await calling.call(self.client, method, *args, **kwargs)
            except Exception as error:  # foreign code may raise what it likes
                if not (retry and was_dropped(error)):
                    raise
            # The call never arrived: it went out on the connection that the server closed after its error.
            return await calling.call(self.client, method, *args, **kwargs)
        except RlctlError:
            raise
        except Exception as error:
            self._after_error_500 = _status(error) == 500
            raise told(method, error) from error

    async def close(self, *, method: str | None, timeout_s: float) -> BackendError | None:
        """Call the client's `method`, if any, and end the thread. Safe twice and at any time.

        Returns what went wrong, since whoever closes has a more important error to tell, or none.
        """
        loop, connecting = self._loop, self._connecting
        if loop is None:
            return None
        self._loop = self._connecting = None
        problem = None
        try:
            if connecting is not None:
                # A start that was interrupted goes on in the thread, and may yet create jobs.
                await asyncio.to_thread(concurrent.futures.wait, [connecting], timeout_s)
                if not connecting.done():
                    problem = BackendError(f"the platform's client was still being made after {timeout_s:g} s.")
            if self.client is not None and method is not None:
                if self._after_error_500:
                    await self._shut_down(loop, HARMLESS, timeout_s=timeout_s)
                problem = await self._shut_down(loop, method, timeout_s=timeout_s)
        finally:
            self.client = None
            loop.call_soon_threadsafe(loop.stop)
        return problem

    async def _shut_down(
        self, loop: asyncio.AbstractEventLoop, method: str, *, timeout_s: float
    ) -> BackendError | None:
        """Call a method, and return what went wrong."""
        future = asyncio.run_coroutine_threadsafe(self._called(method, (), {}), loop)
        try:
            await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)
        except TimeoutError:
            return BackendError(f"the platform's {method} gave no answer within {timeout_s:g} s.")
        except BackendError as error:
            return error
        return None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = self._loop = asyncio.new_event_loop()

            def run() -> None:
                asyncio.set_event_loop(loop)
                loop.run_forever()
                left = asyncio.all_tasks(loop)  # calls that were given up
                for task in left:
                    task.cancel()
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
                loop.close()

            # A daemon: a call that never returns must not keep the process.
            threading.Thread(target=run, name="rlctl-arctic", daemon=True).start()
        return self._loop


async def gathered(calls: Sequence[Callable[[], Awaitable[Any]]], *, at_once: int) -> list[Any]:
    """The results of all calls, `at_once` of them on their way; the first failure cancels the rest."""
    gate = asyncio.Semaphore(at_once)

    async def one(call: Callable[[], Awaitable[Any]]) -> Any:
        async with gate:
            return await call()

    tasks = [asyncio.ensure_future(one(call)) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def was_dropped(error: BaseException) -> bool:
    """Whether the connection was closed from the other side; told by name, as neither library need be there."""
    return isinstance(error, ConnectionError) or any(cls.__name__ in _DROPPED for cls in type(error).__mro__)


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it came from; clients wrap what their libraries raise."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        yield each
        seen.add(id(each))
        each = each.__cause__ or each.__context__


def told(what: str, error: BaseException) -> BackendError:
    """A foreign error as one of ours."""
    text = str(error).strip().split("\n")[0] or "no reason given"
    return BackendError(f"the platform's {what} failed: {type(error).__name__}: {text}", hint=_hint(what, error))


def _hint(what: str, error: BaseException) -> str:
    status = _status(error)
    if what == "generate" and isinstance(error, TimeoutError):
        return "the legacy HTTP client gives up after 300 s; set remote_backend.arctic.samples_per_request."
    if status == 500:
        return "the server tells no reasons for an error 500; they are in its own log."
    if status in (404, 422):
        return "the server may be of another release than the client; `rlctl check-backend arctic` names the client's."
    if was_dropped(error):
        return "the server closed the connection, or is not there; look at its log."
    return "look at the server's log."


def _status(error: BaseException) -> int | None:
    """The HTTP status behind an error of aiohttp or of requests."""
    status = getattr(error, "status", None)
    if not isinstance(status, int):
        status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None
