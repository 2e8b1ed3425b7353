"""`scripts/test.sh` runs every test once."""

from __future__ import annotations

import re

from tests.command_line import ROOT
from tests.conftest import BESIDE_RAY


def test_what_goes_with_either_process_is_what_the_script_hands_out() -> None:
    parts = re.search(r"for part in (.*); do", (ROOT / "scripts/test.sh").read_text())
    assert parts is not None
    assert sorted(parts[1].split()) == sorted([*BESIDE_RAY, "types"])
