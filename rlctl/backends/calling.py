"""Call a client method that may or may not be a coroutine, and say beforehand how it will be called.

A client library turns its methods from sync to async one release at a time. Awaiting a sync one fails
after its work was done; calling an async one without `await` does no work at all. `style` decides, and
both a run (`call`) and `rlctl check-backend` ask it, so the report cannot disagree with the run.

`style` is a statement about the function object. What a plain function hands back shows only when it
is called, so `call` looks at the result again and awaits it on the event loop if it can be awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import re
import types
from collections.abc import AsyncIterable, Callable, Iterator
from typing import Any, Literal

from rlctl.errors import BackendError

Style = Literal[
    "async", "async generator", "returns awaitable", "sync", "unknown", "ray actor method", "mock", "not callable"
]

HOW: dict[Style, str] = {
    "async": "awaited",
    "async generator": "collected into a list",
    "returns awaitable": "on the loop, result awaited",
    "sync": "in a thread, awaited if it returns an awaitable",
    "unknown": "in a thread, awaited if it returns an awaitable",
    "ray actor method": ".remote(...), awaited",
    "mock": "in a thread, awaited if it returns an awaitable",
    "not callable": "cannot be called",
}
"""What `call` does for each style, in words."""


# Any: what a foreign method returns is its caller's to check.
async def call(client: object, method: str, /, *args: object, **kwargs: object) -> Any:
    """The result of `client.method(*args, **kwargs)`, without ever blocking the event loop.

    A generator, async or not, is collected into a list: a run wants whole answers, and a generator that is
    dropped half-way would keep the client's connection. Cancelling does not stop a thread that has begun, and a
    coroutine that blocks inside, which nothing shows, still blocks the loop.
    Raises BackendError when there is no such method; what the method raises goes through.
    """
    function = _method(client, method)
    how = style(function)
    if how == "async":
        return await function(*args, **kwargs)
    result: Any
    if how in ("async generator", "returns awaitable"):
        # On the loop: what it hands back may be bound to the loop it is made on. It is not trusted to be awaitable.
        result = function(*args, **kwargs)
    else:
        # Submitting to an actor pickles the arguments, which takes as long as they are large.
        function = function.remote if how == "ray actor method" else function
        result = await asyncio.to_thread(_in_thread, function, args, kwargs)
    if inspect.isasyncgen(result) or (how == "ray actor method" and hasattr(type(result), "__aiter__")):
        return await _collected(result)
    # Await here, on the loop: the coroutine may have been made in the thread, its client lives on the loop.
    return await result if inspect.isawaitable(result) else result


def _method(client: object, method: str) -> Any:
    hint = "`rlctl check-backend NAME` lists what the client has."
    try:
        function = getattr(client, method)
    except AttributeError as error:
        raise BackendError(f"{type(client).__name__} has no method {method!r}: {error}.", hint=hint) from error
    if style(function) == "not callable":
        raise BackendError(f"{type(client).__name__}.{method} is not a method, it is {function!r}.", hint=hint)
    return function


async def _collected(generator: AsyncIterable[Any]) -> list[Any]:
    # A Ray actor's generator yields references, to be awaited one by one.
    return [await item if inspect.isawaitable(item) else item async for item in generator]


def _in_thread(function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    try:
        result = function(*args, **kwargs)
        return list(result) if inspect.isgenerator(result) and not inspect.isawaitable(result) else result
    except StopIteration as error:
        # A future cannot carry StopIteration: on some Pythons whoever awaits it waits for ever.
        raise RuntimeError(f"{function!r} raised StopIteration.") from error


def style(function: object) -> Style:
    """How a method is called, from the method alone; nothing is called and no attribute is computed.

    Takes bound methods as well as what stands in a class body (staticmethod, classmethod, partialmethod).
    "sync" is said of plain functions only; what could hand anything back is "unknown".
    """
    if is_mock(function):
        return "mock"
    if isinstance(function, (staticmethod, classmethod)):
        return style(function.__func__)
    if isinstance(function, functools.partialmethod):
        return style(function.func)
    if has_remote(function):
        return "ray actor method"
    if inspect.isasyncgenfunction(function):
        return "async generator"
    if inspect.iscoroutinefunction(function):
        return "async"
    if not callable(function):
        return "not callable"
    if promises_awaitable(return_annotation(function)):
        return "returns awaitable"
    return "sync" if _is_plain(function) else "unknown"


def is_mock(thing: object) -> bool:
    """Whether this is a mock of unittest or of its backport, also one dressed up as a function by autospec."""
    if any(cls.__name__ == "NonCallableMock" for cls in type(thing).__mro__):
        return True
    return isinstance(thing, types.FunctionType) and "mock" in vars(thing) and is_mock(vars(thing)["mock"])


def has_remote(thing: object) -> bool:
    """Whether it is called through `.remote(...)`, as a Ray actor's methods are; seen without importing Ray."""
    return not isinstance(thing, type) and inspect.getattr_static(thing, "remote", None) is not None


_AWAITABLE = re.compile(r"^(?:\w+\.)*(Awaitable|Coroutine|Future|Task|ObjectRef)\b")


def promises_awaitable(annotation: str) -> bool:
    """Whether a return annotation, as text, is that of something to await: `Awaitable[dict]`, `asyncio.Future`."""
    return bool(_AWAITABLE.match(annotation.strip("'\"")))


def return_annotation(function: object) -> str:
    """The return annotation as text, "" without one."""
    inner = _innermost(function)
    if not isinstance(inner, types.FunctionType):
        return ""
    try:
        annotation = inner.__annotations__.get("return", "")
    except NameError:  # Python 3.14 evaluates annotations here, and a TYPE_CHECKING import is missing by then
        return ""
    if isinstance(annotation, str):
        return annotation
    return f"{annotation.__module__}.{annotation.__qualname__}" if isinstance(annotation, type) else str(annotation)


def _innermost(function: object) -> object:
    """The function below partials, bound, static and class methods."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, (types.MethodType, staticmethod, classmethod)):
            function = function.__func__
        else:
            return function


def _is_plain(function: object) -> bool:
    """Whether it is written as a plain function and does not hand on what another, awaitable one returns.

    A lambda is all expression, so it may forward anything. So may compiled code and objects with `__call__`.
    """
    inner = _innermost(function)
    if isinstance(inner, functools._lru_cache_wrapper):
        return style(inner.__wrapped__) == "sync"
    if not isinstance(inner, types.FunctionType) or inner.__name__ == "<lambda>":
        return False
    return not any(map(_gives_awaitable, _what_it_wraps(inner)))


def _what_it_wraps(function: types.FunctionType) -> Iterator[object]:
    """The functions a decorated function holds: named by functools.wraps, or else closed over."""
    if "__wrapped__" in vars(function):
        yield vars(function)["__wrapped__"]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell: its variable is not assigned yet
            if callable(cell.cell_contents) and not isinstance(cell.cell_contents, type):
                yield cell.cell_contents


def _gives_awaitable(function: object) -> bool:
    """Whether a wrapped function is, at some depth, one that has to be awaited."""
    inner = _innermost(function)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        return True
    if promises_awaitable(return_annotation(inner)) or has_async_call(inner):
        return True
    below = inspect.getattr_static(inner, "__wrapped__", None)
    return below is not None and _gives_awaitable(below)


def has_async_call(thing: object) -> bool:
    """Whether it is an object whose class defines `async def __call__`."""
    return inspect.iscoroutinefunction(inspect.getattr_static(type(thing), "__call__", None))
