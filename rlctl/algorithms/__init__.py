"""The algorithms of a run, as far as no tensor is needed: which there are, and what the driver computes for them.

`registry.py` finds one by its name, `estimators.py` and `losses.py` are the tables. `advantages.py` has the formulas of
the estimators, `comparing.py` takes rollouts to rows with advantages; `correction.py` and `covariance.py` look at a
whole batch where a micro-batch would be too little. The formulas of the losses are in `engine/policy_losses.py`.
docs/algorithms.md has each with its source.
"""
