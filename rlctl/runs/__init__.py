"""Looking at runs: what `rlctl runs` lists, shows, follows, compares, draws and reports.

Nothing here writes into a run's folder or takes its lock, so that a run that is going is never disturbed.
"""
