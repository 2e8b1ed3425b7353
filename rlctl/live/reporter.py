"""Who draws the live view: a thread of its own, so that neither a slow picture nor a terminal that has stopped (Ctrl-S,
a stalled connection) holds up the run.

The run only writes down what it knows. The thread draws when there is news, when the terminal has changed its size, and
once in a while for the clock; it takes at most SHARE of one core, however slow the machine. Notes scroll above.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment
from rich.text import Text

from rlctl.display import Metrics, PlainReporter, core_scores
from rlctl.live.glyphs import glyphs_for
from rlctl.live.state import STEP, State, Waits
from rlctl.live.view import body, head
from rlctl.prepare import Prepared
from rlctl.printable import printable
from rlctl.types import BackendInfo, Rollout

SHARE = 0.0025
"""Most of one core's time that drawing takes: half of the half percent of a step that the view may cost."""

FASTEST_S, SLOWEST_S = 0.5, 10.0
"""Seconds between two pictures at least, and the bound on how far SHARE may stretch them."""

CLOCK_S = 1.0
"""Seconds after which the clock is drawn again without news."""

POLL_S = 0.1
"""Seconds between two looks at the size of the terminal: fast enough for a hand that drags a window."""

LEAVING_S = 1.0
"""Seconds that leaving at once waits for the terminal to be put in order; one that takes nothing is left as it is."""

NO_WRAP, WRAP = "\x1b[?7l", "\x1b[?7h"
"""Around each picture: a line that the terminal finds wider than it was counted is cut, in place of shifting all."""


class Picture:
    """Lines as a renderable: no wrapping, no markup, and no more than fits.

    The terminal may have shrunk since the lines were made. rich would cut what is too much, and the switch at the end
    with it.
    """

    def __init__(self, lines: Sequence[Text]) -> None:
        self.lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _switch(NO_WRAP)
        for number, text in enumerate(self.lines[: options.size.height]):
            if number:
                yield Segment.line()
            shown = text.copy()
            shown.truncate(options.max_width)
            yield from shown.render(console)
        yield _switch(WRAP)


def _switch(code: str) -> Segment:
    return Segment(code, None, [(ControlType.CARRIAGE_RETURN,)])


class LiveReporter(PlainReporter):
    """The view of one run. Where drawing fails, plain lines take over: a picture never ends a run."""

    def __init__(self, console: Console, *, title: str = "", history: Sequence[Metrics] = ()) -> None:
        super().__init__()
        self.console = console
        self.glyphs = glyphs_for(console.encoding)
        self.state = State(title=title)
        for record in history:
            self._recall(record)
        self.live = Live(
            console=console,
            auto_refresh=False,
            vertical_overflow="crop",
            redirect_stderr=sys.stderr.isatty(),
        )
        self.drawn_s = 0.0
        """CPU seconds that drawing has taken."""
        self.failed = False
        self._notes: deque[str] = deque()
        self._wake, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._draw_until_over, name="rlctl-live", daemon=True)
        self._size = console.size
        self._changes = -1
        """Those that the last picture shows."""
        self._body: tuple[object, list[Text]] = (None, [])
        self._lengths: list[int] = []
        """Of the lines of the last picture, in cells."""

    def _recall(self, record: Metrics) -> None:
        """Take in a line of metrics.jsonl; that of step 0 has an evaluation and no step."""
        if record.get("timing_s/testing"):
            self.state.evaluated(record)
        if record[STEP] > 0:
            self.state.add(record)

    def __enter__(self) -> LiveReporter:
        self.live.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._wake.set()
        self._thread.join()
        self._tell_the_rest()

    def follow(self, waits: Waits) -> None:
        self.state.waits = waits

    def started(self, prepared: Prepared, info: BackendInfo) -> None:
        super().started(prepared, info)
        state, settings = self.state, prepared.settings
        state.total = prepared.geometry.steps
        state.max_response_length = settings.rollout.max_response_length
        state.eval_freq = settings.trainer.eval_freq if len(prepared.eval_problems) else 0
        machine = f"{info.dtype} on {info.num_devices} x {info.device}"
        state.title = ", ".join(filter(None, (state.title, prepared.model, settings.backend, machine)))
        state.step_began = time.monotonic()

    def sampled(self, rollouts: Sequence[Rollout]) -> None:
        self.state.sampled(rollouts)

    def step(self, metrics: Metrics) -> None:
        self.state.add(metrics)
        if self.failed:
            super().step(metrics)
        else:
            self.explain_loss_once(metrics)

    def evaluating(self, step: int) -> None:
        self.state.evaluating = step

    def evaluation(self, step: int, metrics: Metrics) -> None:
        self.state.evaluated(metrics)
        if self.failed:
            super().evaluation(step, metrics)
            return
        for key, value in core_scores(metrics).items():
            self._show_above(f"step {step}: {key} {value:.3f}")

    def note(self, text: str) -> None:
        if self.failed or not sys.stderr.isatty():
            super().note(text)
        else:
            self._show_above(text)

    def _show_above(self, text: str) -> None:
        self._notes.append(text)
        self._wake.set()

    def abort(self) -> None:
        """Draw and print what is left and put the terminal in order, if it lets us."""
        self._over.set()
        self._wake.set()
        self._thread.join(LEAVING_S)

    def _draw_until_over(self) -> None:
        try:
            while not self._over.is_set():
                begun = time.thread_time()
                self._draw()
                cost = time.thread_time() - begun
                self.drawn_s += cost
                self._rest(min(SLOWEST_S, max(FASTEST_S, cost / SHARE)))
            self._draw()
        except OSError:  # the terminal has gone
            self.failed = True
        except Exception as error:  # the outermost frame of this thread: whatever it is, the run goes on
            self.failed = True
            self._notes.append(f"note: the live view failed ({type(error).__name__}: {error}); plain lines from here")
        finally:
            with contextlib.suppress(OSError):
                self.live.stop()
            self._tell_the_rest()

    def _tell_the_rest(self) -> None:
        while self._notes:
            super().note(self._notes.popleft())

    def _rest(self, pause: float) -> None:
        """Until the next picture is due: `pause` after the last one with news, and at once for notes and a new size."""
        begun = time.monotonic()
        while not (self._over.is_set() or self._notes or self.console.size != self._size):
            waited = time.monotonic() - begun
            if waited >= pause and (self.state.changes != self._changes or waited >= CLOCK_S):
                return
            self._wake.wait(POLL_S)
            self._wake.clear()

    def _draw(self) -> None:
        self._mend_after_resize()
        self._print_notes()
        self._changes = self.state.changes
        width, height = self._size.width - 1, self._size.height - 1
        key = (self._changes, width, height)
        if self._body[0] != key:
            self._body = (key, body(self.state, width, height, glyphs=self.glyphs))
        top = head(self.state, width, height, glyphs=self.glyphs, now=time.monotonic())
        lines = [*top, *self._body[1]]
        self.live.update(Picture(lines), refresh=True)
        self._lengths = [text.cell_len for text in lines]

    def _print_notes(self) -> None:
        notes = [self._notes.popleft() for _ in range(len(self._notes))]
        if notes:
            # As one, since each print draws the view again.
            self.console.print(Text(printable("\n".join(notes), encoding=self.console.encoding)))

    def _mend_after_resize(self) -> None:
        """A narrower terminal has broken the lines of the last picture in several, which rich does not count."""
        size = self.console.size
        rows = sum(max(1, math.ceil(length / size.width)) for length in self._lengths)
        if size.width < self._size.width and (more := rows - len(self._lengths)) > 0:
            erase, up = (ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)
            self.console.control(Control(ControlType.CARRIAGE_RETURN, erase, *[up, erase] * more))
        self._size = size
