"""What a check reports: a backend's parts, the methods of each, and the findings about all three.

Plain records, so that `dataclasses.asdict` of a report is what `rlctl check-backend --format json` prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a user should know. `stops` when a run cannot start, or cannot be known to start, with it."""

    text: str
    stops: bool


@dataclass(frozen=True, slots=True)
class MethodReport:
    """One method of the contract: what is expected, what was found, and how a run calls it."""

    name: str
    expected: str
    found: str
    call: str
    findings: tuple[Finding, ...] = ()
    note: str = ""
    signature: str = ""
    """As it was found, with its defaults; "" where it cannot be read."""
    reply: tuple[str, ...] = ()
    """Keys that a run reads of its reply."""
    versions: str = ""
    """In which releases it is, as the contract has it."""


@dataclass(frozen=True, slots=True)
class Package:
    """What a target comes from: the distribution's version, and where its files were found."""

    distribution: str
    version: str
    """"unknown" where the files found are not those of an installed distribution."""
    folder: str


@dataclass(frozen=True, slots=True)
class PartReport:
    """One class that a run needs: the backend's own ("backend"), or that of the client it drives ("client")."""

    part: str
    target: str
    kind: str
    """What the target is: a class, a factory and what it returns, an object."""
    read: str
    """Whether it was imported, or read from which file."""
    methods: tuple[MethodReport, ...]
    findings: tuple[Finding, ...] = ()
    """What was found about the class as a whole."""
    name: str = ""
    """Which of several clients it is; "" where there is one."""
    decides: bool = True
    """Whether a run takes this one; what is found of the others stops nothing."""
    package: Package | None = None
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """Public methods that the contract does not know, each with its signature."""
    style_changed: tuple[str, ...] = ()
    signature_changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialCheck:
    """One thing that a started backend did, or did not."""

    name: str
    outcome: Literal["ok", "failed", "refused"]
    """`refused` is what a backend says on purpose that it cannot do; a run can do without."""
    seconds: float
    stall_seconds: float
    """Longest time for which the event loop did not run."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """A tiny job on the started backend."""

    device: str
    checks: tuple[TrialCheck, ...]

    @property
    def failed(self) -> list[TrialCheck]:
        return [check for check in self.checks if check.outcome == "failed"]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything `check-backend` knows of one backend."""

    backend: str
    parts: tuple[PartReport, ...]
    findings: tuple[Finding, ...] = ()
    trial: Trial | None = None
    """What a real, tiny job showed; None when none was started."""

    @property
    def stopping(self) -> list[str]:
        """The findings that stop a run, each with the method it is about."""
        general = [finding.text for finding in self.findings if finding.stops]
        general += [f"{check.name}: {check.detail}" for check in self.trial.failed] if self.trial else []
        deciding = [part for part in self.parts if part.decides]
        of_parts = [finding.text for part in deciding for finding in part.findings if finding.stops]
        of_methods = [
            f"{method.name}: {finding.text}"
            for part in deciding
            for method in part.methods
            for finding in method.findings
            if finding.stops
        ]
        return general + of_parts + of_methods

    @property
    def can_run(self) -> bool:
        return not self.stopping
