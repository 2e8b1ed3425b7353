"""Keep stdout for results: what other people's code and its processes print there goes to stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def to_stderr() -> Iterator[None]:
    """Inside, whatever is written to stdout is on stderr: by print, by C code, and by processes started here."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
