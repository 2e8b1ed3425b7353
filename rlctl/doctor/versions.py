"""versions.toml, read: what rlctl was tested with, and what is known to be broken."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

FILE = Path(__file__).with_name("versions.toml")


@dataclass(frozen=True, slots=True)
class Package:
    """What is known of a package."""

    name: str
    tested: Sequence[str] = ()
    least: str | None = None
    extra: str | None = None
    backends: Sequence[str] = ()
    also: Sequence[str] = ()
    install: str | None = None

    @property
    def cure(self) -> str:
        return self.install or (f"pip install 'rlctl[{self.extra}]'" if self.extra else "pip install rlctl")


@dataclass(frozen=True, slots=True)
class Bad:
    """A version that is known to be broken, alone or beside certain others."""

    package: str
    versions: str
    level: Literal["fail", "warn"]
    why: str
    cure: str
    source: str
    beside: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a backend needs beside packages."""

    shared_memory: bool = False
    ports: Sequence[tuple[int, str]] = ()
    """(number, who listens there)."""


@dataclass(frozen=True, slots=True)
class Versions:
    python_least: str
    python_tested: Sequence[str]
    packages: Mapping[str, Package]
    backends: Mapping[str, Needs]
    bad: Sequence[Bad]
    accepted: Mapping[str, Sequence[str]]
    """Package -> names of requirements that the tests break on purpose."""
    drivers: Mapping[int, str]
    """Major version of CUDA -> the least driver for it."""

    def names(self) -> list[str]:
        """Every package that a line or a rule is about, by each of its names."""
        named = [name for package in self.packages.values() for name in (package.name, *package.also)]
        ruled = [name for bad in self.bad for name in (bad.package, *bad.beside)]
        return list(dict.fromkeys([*named, *ruled]))

    def ports(self) -> list[tuple[int, str]]:
        return [port for needs in self.backends.values() for port in needs.ports]

    def extras_of(self, backend: str | None) -> list[str]:
        return sorted({p.extra for p in self.packages.values() if p.extra and backend in p.backends})


def read(file: Path = FILE) -> Versions:
    tree = tomllib.loads(file.read_text(encoding="utf-8"))
    return Versions(
        python_least=tree["python"]["least"],
        python_tested=tree["python"]["tested"],
        packages={name: Package(name, **known) for name, known in tree["packages"].items()},
        backends={
            name: Needs(needs["shared_memory"], [(number, purpose) for number, purpose in needs["ports"]])
            for name, needs in tree["backends"].items()
        },
        bad=[Bad(beside=rule.pop("with", {}), **rule) for rule in tree["bad"]],
        accepted={rule["package"]: rule["requirements"] for rule in tree["accepted"]},
        drivers={rule["major"]: rule["driver"] for rule in tree["cuda"]},
    )
