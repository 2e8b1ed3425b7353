"""Python and packages against versions.toml: facts -> lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlctl.doctor.facts import Facts, Unmet
from rlctl.doctor.lines import Line, fail, ok, warn
from rlctl.doctor.versions import Bad, Package, Versions


def python(facts: Facts, versions: Versions) -> Iterator[Line]:
    found = f"{facts.python.version} ({facts.python.implementation}) on {facts.system}"
    if _older(facts.python.version, versions.python_least):
        yield fail("python", found, f"rlctl needs Python {versions.python_least} or newer")
    elif facts.python.implementation != "CPython":
        yield warn("python", found, "torch is made for CPython")
    elif facts.python.version.rsplit(".", 1)[0] not in versions.python_tested:
        tested = ", ".join(versions.python_tested)
        yield ok("python", f"{found}; tested with {tested}")
    else:
        yield ok("python", found)
    if not facts.python.in_environment:
        yield warn(
            "environment", "the system's own Python", "python -m venv .venv: a system's packages change under you"
        )


def packages(facts: Facts, versions: Versions, *, backend: str | None) -> Iterator[Line]:
    for package in versions.packages.values():
        yield from _package(package, facts, needed=backend in package.backends)
    for bad in versions.bad:
        yield from _bad(bad, facts.packages)
    told = {name for package in versions.packages.values() for name in (package.name, *package.also)}
    yield from _unmet([one for one in facts.unmet if not (one.core and one.requirement in told)], versions.accepted)


def _package(package: Package, facts: Facts, *, needed: bool) -> Iterator[Line]:
    name = next((name for name in (package.name, *package.also) if name in facts.packages), None)
    cure = package.cure
    tested = ", ".join(package.tested)
    broken = next((name for name in (package.name, *package.also) if name in facts.damaged), None)
    if name is None and broken is not None:
        level = fail if needed or package.extra is None else warn
        yield level(package.name, f"damaged: {facts.damaged[broken]}", f"pip install --force-reinstall {broken}")
        return
    if name is None:
        if needed or package.extra is None:
            yield fail(package.name, "not installed", cure)
        else:
            yield ok(package.name, f"not installed (optional: {cure})")
        return
    version = facts.packages[name]
    found = version if name == package.name else f"{version} ({name})"
    if package.least and _older(version, package.least):
        level = fail if needed or package.extra is None else warn
        yield level(package.name, f"{found}; rlctl needs {package.least} or newer", f"{cure} --upgrade")
    elif package.tested and version.partition("+")[0] not in package.tested:
        yield warn(
            package.name, f"{found}; tested with {tested}",
            f"nothing, while it works; else pip install '{name}=={package.tested[-1]}'",
        )  # fmt: skip
    else:
        yield ok(package.name, f"{found}, as tested")


def _bad(bad: Bad, installed: Mapping[str, str]) -> Iterator[Line]:
    wanted = {bad.package: bad.versions, **bad.beside}
    if all(_within(installed.get(name), versions) for name, versions in wanted.items()):
        found = " with ".join(f"{name} {installed[name]}" for name in wanted)
        level = fail if bad.level == "fail" else warn
        yield level("known to be bad", f"{found}: {bad.why}", bad.cure, source=bad.source)


def _unmet(unmet: Sequence[Unmet], accepted: Mapping[str, Sequence[str]]) -> Iterator[Line]:
    for one in unmet:
        if one.requirement in accepted.get(one.package, ()):
            continue
        wanted = f"{one.requirement}{one.versions}"
        found = f"{one.package} asks for {wanted}; {one.found or 'none'} is installed"
        if one.core:
            yield fail("requirements", found, "pip install --upgrade rlctl, in an environment of its own")
        else:
            yield warn("requirements", found, f"pip install '{wanted}', unless something else forbids it")


def _older(version: str, least: str) -> bool:
    return _within(version, f"<{least}")


def _within(version: str | None, specifier: str) -> bool:
    """Whether it is installed, and one of these; never where `packaging`, a line of its own, is not there to tell."""
    try:
        from packaging.specifiers import SpecifierSet
        from packaging.version import InvalidVersion
    except ModuleNotFoundError:
        return False
    if version is None:
        return False
    try:
        return SpecifierSet(specifier).contains(version.partition("+")[0], prereleases=True)
    except InvalidVersion:
        return False
