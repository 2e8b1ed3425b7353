"""The command line: one Typer app, one file a command, and the place where errors become exit codes.

Nothing heavy is imported here; each command imports what it needs when it runs.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer

from rlctl import __version__
from rlctl.commands import helptext
from rlctl.commands.check_backend import check_backend
from rlctl.commands.completion import completion
from rlctl.commands.config import app as config_app
from rlctl.commands.data import app as data_app
from rlctl.commands.debug import app as debug_app
from rlctl.commands.doctor import doctor
from rlctl.commands.eval import evaluate
from rlctl.commands.plan import plan
from rlctl.commands.plugins import plugins
from rlctl.commands.presets import app as presets_app
from rlctl.commands.resume import resume
from rlctl.commands.resume_test import resume_test
from rlctl.commands.reward import app as reward_app
from rlctl.commands.runs import app as runs_app
from rlctl.commands.serve import serve
from rlctl.commands.smoke import smoke
from rlctl.commands.train import train
from rlctl.errors import RlctlError

SPIN_COUNT = "10000"
"""Rounds an OpenMP thread spins before it sleeps. The default of 300,000 made a smoke run with another process on its
two cores ten times slower; alone, 10,000 costs it 3 %."""

COMPLETE = "__complete"
"""What the scripts of `rlctl completion` call. No command of the app: no shell and no help offers it."""

app = typer.Typer(
    name="rlctl",
    help="Post-train language models with GRPO on whatever compute you have.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=helptext.context_settings(shutil.get_terminal_size().columns),
)
app.command(short_help="Train a policy with GRPO.")(train)
app.command(short_help="Go on with a run that stopped.")(resume)
app.command(short_help="Run a few steps and judge them.")(smoke)
app.command(short_help="Host a backend for other machines.")(serve)
app.command("resume-test", short_help="Kill a run, resume it, compare.")(resume_test)
app.command("eval", short_help="Sample and grade a model, or compare two.")(evaluate)
app.command(short_help="Say what a run needs, and whether it fits.")(plan)
app.command("check-backend", short_help="Say how a run would call a backend.")(check_backend)
app.command(short_help="Check this machine; say what is wrong, and the cure.")(doctor)
app.command(short_help="List backends, and plugins that fail.")(plugins)
app.command(short_help="Print the completion script of a shell.")(completion)
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
app.add_typer(debug_app, name="debug")
app.add_typer(presets_app, name="presets")
app.add_typer(reward_app, name="reward")
app.add_typer(runs_app, name="runs")
app.add_typer(reward_app, name="rewards", hidden=True)  # as it was called when it only listed and described


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rlctl {__version__}")
        raise typer.Exit


@app.callback()
def _rlctl(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Post-train language models with GRPO on whatever compute you have.

    Example: rlctl train --preset gsm8k-grpo
    """


helptext.finish(app)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code: errors of ours are told in two lines, never with a traceback."""
    _prepare_process()
    words = sys.argv[1:] if arguments is None else list(arguments)
    _exit(_complete(words[1:]) if words[:1] == [COMPLETE] else _run(words))


def _complete(words: list[str]) -> int:
    from rlctl.completion.answering import answer

    return answer(app, words)


def _prepare_process() -> None:
    # A closed pipe ends a command as it ends any other program; `train` and `smoke` choose to go on.
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: >&-
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  # open for the life of the process
    # A name may not fit the terminal's encoding; on stderr Python writes it as an escape by itself.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # Progress bars of the libraries beneath would tear the live table and fill a log; tqdm reads this when imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    # Read by OpenMP when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def _run(arguments: Sequence[str]) -> int:
    try:
        app(args=arguments, prog_name="rlctl")
    except RlctlError as error:
        _complain(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:
        return _code(error)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EPIPE):
            raise
        return _output_failed(error)
    return 0


def _code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def _complain(error: RlctlError) -> None:
    """On stderr; texts of files are in messages, so nothing in them may move the cursor."""
    from rlctl.printable import printable

    lines = printable(error.message).split("\n")
    sys.stderr.write("".join(f"{type(error).__name__}: {line}\n" for line in lines))
    if error.hint:
        sys.stderr.write(f"hint: {printable(error.hint)}\n")


def _output_failed(error: OSError) -> int:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"the output cannot be written: {error.strerror}\n")
    return 1


def _exit(code: int) -> NoReturn:
    """Exit, without the interpreter's complaint about an output that cannot be flushed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            code = code or _output_failed(error)
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


if __name__ == "__main__":
    main()
