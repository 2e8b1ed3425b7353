"""Configs of other tools (TRL, verl, OpenRLHF) as settings of rlctl: `rlctl config import`.

reading.py           a file of any form -> entries: yaml_entries.py, shell.py and command_line.py, references.py
defaults/  maps/     what each peer's settings and defaults are, by version; what they are in rlctl
tables.py            both, loaded          detect.py    which peer, which version, or which other tool
trl.py verl.py openrlhf.py common.py       rules over settings that only make sense together
mapping.py           the map for all others      book.py findings.py    what became of each
translate.py         all of it, ending in settings that load
writing.py reports.py                      the TOML; the differences
"""
