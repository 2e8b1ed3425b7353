"""Problems of packages that bring their own grader: reasoning-gym and verifiers.

A loader puts into `problem.extra` what the grader needs to know the problem again: plain data, so that a reward may run
in another process. `grading.py` is the reward that hands each problem to the grader it came with.
"""

from __future__ import annotations
