"""Smoke baselines: what runs of a recipe do and cost, kept in a file, and whether later runs are worse.

`clock.py` times phases net of waiting for a processor, `meter.py` times a fixed piece of work beside every phase,
`record.py` is what one run leaves, `file.py` the file of several, `judging.py` what later runs are called,
`estimating.py` how much slower they are and how surely, and `words.py` how that is told. Seconds are never compared
with seconds of another hour: only their ratios to the reference work of the same minute are.
"""
