"""A process that has loaded what rlctl's commands load, and forks for each: a command without its seconds of imports.

`tests/command_line.py` starts it and asks it for commands. It never computes: a child of fork has only the thread that
forked, so a pool of threads that the parent had started would leave a child waiting for it forever.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import socket
import sys
import threading
import traceback
import weakref
from pathlib import Path
from typing import Any

from rlctl import commands

# Not rlctl.cli, which reads the width of the terminal when it is imported, nor pyarrow, which starts a thread.
MODULES = (
    "torch", "transformers", "transformers.models.llama.modeling_llama", "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto", "pydantic_settings",
    "jinja2", "rich.console", "rich.table", "rlctl.backends.local.backend", "rlctl.engine.sampler", "rlctl.display",
    "rlctl.loop", "rlctl.prepare", "rlctl.config", "rlctl.eval_run", "rlctl.smoke_run",
    *(f"rlctl.commands.{module.name}" for module in pkgutil.iter_modules(commands.__path__)),
)  # fmt: skip


def main() -> None:
    """Serve requests until whoever asks is gone; in a child, go on as `python -m rlctl`."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    for name in MODULES:
        importlib.import_module(name)
    threads = os.listdir("/proc/self/task")  # noqa: PTH208  # names are all that is wanted
    assert threading.active_count() == len(threads) == 1, f"{len(threads)} threads: a fork would lose some of them"
    # What is here for good is neither looked through by a child's collector nor copied because it was.
    gc.collect()
    gc.freeze()
    for library in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # torch's take a tenth of a second
        library.atexit = False
    request = _serve(channel)
    # Not by return: an interpreter takes a while to take itself apart with so much in it, which matters to none.
    os._exit(0 if request is None else _run(request))


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    """The request, in the child that is to run it; None in the parent, after the last."""
    while True:
        message, descriptors, *_ = socket.recv_fds(channel, 1 << 20, 4)
        if not message:
            _bury()
            return None
        if os.fork() == 0:
            channel.close()
            return _forked(json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        _bury()


def _bury() -> None:
    """Those who have waited for their commands, so that what all took is known to whoever started this process."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _forked(request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
    """Fork the command and return in it; this process tells its number and, at the end, how it ended."""
    *streams, status = descriptors
    child = os.fork()
    if child == 0:
        os.close(status)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return request
    for stream in (*streams, 0, 1, 2):
        os.close(stream)
    os.write(status, f"{child}\n".encode())
    _, ended = os.waitpid(child, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def _run(request: dict[str, Any]) -> int:
    """The exit code of `python -m rlctl ...`, with what a new interpreter would have been given.

    In the order of an interpreter's end: https://docs.python.org/3/c-api/init.html#c.Py_FinalizeEx
    """
    os.setsid()  # a command that signals its group meets nobody else
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.argv = ["rlctl", *request["arguments"]]
    sys.path[0] = str(Path.cwd())
    code = _code()
    threading._shutdown()  # waits for threads, as in multiprocessing's children
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _code() -> int:
    try:
        runpy.run_module("rlctl", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
