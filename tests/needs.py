"""What a test needs beyond the development dependencies: a CI without it fails, a developer's machine skips."""

from __future__ import annotations

import os

import pytest


def needs(what: str, *, there: bool, how: str) -> None:
    if there:
        return
    if os.environ.get("CI"):
        pytest.fail(f"{what} missing; a CI has it by: {how}")
    pytest.skip(f"needs {what}: {how}")
