"""What a check reports: a backend's parts, the methods of each, and the findings about all three.

Plain records, so that `dataclasses.asdict` of a report is what `rlctl check-backend --format json` prints.
"""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class Report:
    """Everything `check-backend` knows of one backend."""

    backend: str
    parts: tuple[PartReport, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def stopping(self) -> list[str]:
        """The findings that stop a run, each with the method it is about."""
        general = [finding.text for finding in self.findings if finding.stops]
        of_parts = [finding.text for part in self.parts for finding in part.findings if finding.stops]
        of_methods = [
            f"{method.name}: {finding.text}"
            for part in self.parts
            for method in part.methods
            for finding in method.findings
            if finding.stops
        ]
        return general + of_parts + of_methods

    @property
    def can_run(self) -> bool:
        return not self.stopping
