"""What `rlctl check-backend` reports, as data: could a run start, and how would it call each method?

A method is judged from the class as it stands there (`inspect.getattr_static`): no property is triggered, no
`__getattr__` asked, no client made. A client that cannot be imported here is read from its source instead.
How a method is called is decided by `calling.style`, the same function that a run asks.
A mock answers to anything, so it proves nothing: it stops a run, like what is missing.

  report          what is reported
  contracts       what a run calls, from a Protocol class or from an adapter's contract file
  packages        the distribution that a target is of, and its version
  checking        what of a backend is judged, and where it is found
  comparing       a target against the contract: each method's style ...
  signatures      ... and its parameters
  targets         a class and its methods, the same whether live or in source
  live            targets that were imported
  source          finding a name in source, through re-exports, without importing anything
  source_classes  targets that are read from source
  source_imports  the packages that a module imports and that are not installed
  lock            what was seen, pinned in a file, and what has changed since
  trial           a tiny job on the started backend: the contract, timed
"""

from __future__ import annotations

from rlctl.backends.probe.checking import check
from rlctl.backends.probe.report import Finding, MethodReport, Package, PartReport, Report, Trial, TrialCheck

__all__ = ["Finding", "MethodReport", "Package", "PartReport", "Report", "Trial", "TrialCheck", "check"]
