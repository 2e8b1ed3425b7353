"""What a shell may write after the words typed so far: `rlctl completion SHELL` prints the script that asks here.

The scripts call `rlctl __complete SHELL ...` at each press of the key, so nothing heavy is imported: settings are read
from the source of their classes (`settings.py`), presets and runs from their files.
"""
