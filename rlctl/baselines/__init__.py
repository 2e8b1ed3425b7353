"""Smoke baselines: what a run of a recipe does and costs, kept in a file, and whether a later run is worse.

`clock.py` times phases net of waiting for a processor, `meter.py` times a fixed piece of work beside every step,
`record.py` is what one run leaves, `file.py` the file of several, `judging.py` what a later run is called and
`words.py` how that is told. Seconds are never compared with seconds of another hour: only their ratios to the reference
work of the same minute are.
"""
