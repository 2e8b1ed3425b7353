"""Text-to-SQL: find the query in a completion, execute it where it can do no harm, compare rows with the gold's.

`extract.py` finds the query, `worker.py` executes it in a process of its own behind `guard.py`, `pool.py` keeps those
processes, `gold.py` remembers what gold queries give, `rows.py` compares, `reward.py` scores, `lint.py` finds problems
whose gold cannot be relied on. Nothing is imported here: a worker must start light.
"""
