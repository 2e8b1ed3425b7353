"""What the live view costs: CPU seconds of the thread that draws, and seconds that the run itself spends telling it.

    python benchmarks/live_view.py [--steps 12] [--columns 160] [--lines 45]

Trains the embedded model with the view drawn on a pseudo-terminal that is read at once. The last line is
machine-readable: both costs as shares of the run's time. Shares, not a comparison of two runs: they are far below what
two runs differ by.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import pty
import struct
import termios
import threading
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from rlctl import config, loop
from rlctl.live.reporter import LiveReporter
from rlctl.prepare import prepare


class Timed(LiveReporter):
    """Adds up the seconds that the run's own thread spends in the view."""

    told_s = 0.0
    began = 0.0

    def started(self, *arguments: Any) -> None:
        super().started(*arguments)
        self.began = time.perf_counter()

    def sampled(self, rollouts: Sequence[Any]) -> None:
        begun = time.perf_counter()
        super().sampled(rollouts)
        self.told_s += time.perf_counter() - begun

    def step(self, metrics: Any) -> None:
        begun = time.perf_counter()
        super().step(metrics)
        self.told_s += time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--columns", type=int, default=160)
    parser.add_argument("--lines", type=int, default=45)
    options = parser.parse_args()
    sets = [f"trainer.steps={options.steps}", f"trainer.train_batch_size={options.prompts}", "trainer.eval_freq=0"]
    ready = prepare(config.load(preset="gsm8k-grpo", variant="embedded", assignments=sets, environ={}).settings)
    console = Console(
        file=os.fdopen(_terminal(), "w"), force_terminal=True, width=options.columns, height=options.lines
    )
    with Timed(console) as view:
        asyncio.run(loop.run(ready, backend=loop.backend_for(ready), reporter=view, files=None))
        seconds = time.perf_counter() - view.began
    report = {
        "step_s": seconds / options.steps,
        "draw_ms_per_step": 1e3 * view.drawn_s / options.steps,
        "told_ms_per_step": 1e3 * view.told_s / options.steps,
        "share": (view.drawn_s + view.told_s) / seconds,
    }
    print(
        f"a step {report['step_s']:.2f} s; drawing {report['draw_ms_per_step']:.2f} ms of CPU, telling "
        f"{report['told_ms_per_step']:.3f} ms of the run: {100 * report['share']:.2f} % of a step"
    )
    print(json.dumps(report))


def _terminal() -> int:
    """The side of a pseudo-terminal that is written to; a thread reads the other."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 160, 0, 0))
    threading.Thread(target=_read_all, args=(master,), daemon=True).start()
    return slave


def _read_all(master: int) -> None:
    while os.read(master, 65536):
        pass


if __name__ == "__main__":
    main()
