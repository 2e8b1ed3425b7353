"""`python -m rlctl`."""

from __future__ import annotations

from rlctl.cli import main

main()
