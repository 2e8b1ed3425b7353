"""`rlctl doctor`: what this machine has, against what rlctl was tested with and what is known to be broken.

`facts.py` is what can be known; `software.py`, `machine.py`, `gpus.py` and `network.py` find it out, each part with a
time limit; `judging.py`, `judging_versions.py` and `judging_gpus.py` turn facts into lines and look at nothing else;
`versions.toml` holds the versions.
"""
