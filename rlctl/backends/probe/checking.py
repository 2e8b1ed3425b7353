"""Check a backend: what of it is judged, against which contract, and whether it is imported or read from source."""

from __future__ import annotations

from dataclasses import replace

from rlctl.backends.importing import import_foreign
from rlctl.backends.probe.comparing import judge
from rlctl.backends.probe.contracts import ContractFile, of_class, read_contract
from rlctl.backends.probe.live import live_target
from rlctl.backends.probe.packages import package_of
from rlctl.backends.probe.report import Finding, PartReport, Report
from rlctl.backends.probe.source import resolve
from rlctl.backends.probe.source_classes import source_target
from rlctl.backends.probe.source_imports import refuse_missing_imports
from rlctl.backends.probe.targets import Target
from rlctl.backends.registry import BUILT_IN, BackendSpec
from rlctl.errors import BackendUnavailable, ConfigError


def check(spec: BackendSpec, *, client: str | None = None) -> Report:
    """Judge a backend, or only the `client` given as "module:Class" in place of the one it is registered with.

    Raises BackendUnavailable when what is registered is not installed, ConfigError when `client` names nothing.
    """
    if client is not None:
        return Report(spec.name, (_check_given_client(spec, client),), _no_adapter(spec, stops=False))
    parts = []
    if spec.backend:
        parts.append(_check_backend(spec))
    if spec.contract:
        parts += _check_clients(spec, read_contract(spec.contract))
    elif spec.client and spec.protocol:
        parts.append(_check_registered_client(spec))
    return Report(spec.name, tuple(parts), _no_adapter(spec, stops=True) + _no_protocol(spec))


def _check_given_client(spec: BackendSpec, reference: str) -> PartReport:
    """Judge the `--client` of the command line. Raises ConfigError when it names nothing."""
    if not (spec.protocol or spec.contract):
        raise ConfigError(
            f"--client {reference!r}: backend {spec.name!r} drives no client.", hint="leave the option out."
        )
    module, colon, name = reference.partition(":")
    if not (module and colon and name.isidentifier()):
        raise ConfigError(
            f"--client {reference!r} does not name a class.",
            hint="write it as module:Class, for example my_package.client:Client.",
        )
    try:
        target = _client_target(reference, needed_by="--client")
    except BackendUnavailable as failure:
        raise ConfigError(f"--client {reference!r}: {failure.message}", hint=failure.hint) from failure
    package = package_of(reference)
    if not spec.contract:
        return judge(target, of_class(spec.load("protocol")), part="client", package=package)
    clients = read_contract(spec.contract).clients
    named = [client for client in clients if client.target == reference] or clients
    judged = [judge(target, client.contract, part="client", name=client.name, package=package) for client in named]
    # A client that the contract does not name is meant in the place of the one that it is nearest to.
    return min(judged, key=lambda part: len(Report(spec.name, (part,)).stopping))


def _check_registered_client(spec: BackendSpec) -> PartReport:
    target = _client_target(spec.client, needed_by=f"backend {spec.name!r}", install=spec.install)
    return judge(target, of_class(spec.load("protocol")), part="client", package=package_of(spec.client))


def _check_clients(spec: BackendSpec, contract: ContractFile) -> list[PartReport]:
    """Judge every client of a contract file that is here; a run takes the first of them.

    Raises BackendUnavailable when none is.
    """
    parts: list[PartReport] = []
    failures: list[BackendUnavailable] = []
    for client in contract.clients:
        try:
            target = _client_target(client.target, needed_by=f"backend {spec.name!r}", install=spec.install)
        except BackendUnavailable as failure:
            failures.append(failure)
            continue
        package = package_of(client.target, distributed_as=contract.distribution)
        decides = not parts
        parts.append(judge(target, client.contract, part="client", name=client.name, decides=decides, package=package))
    if not parts:
        raise failures[0]
    return parts


def _client_target(reference: str, *, needed_by: str, install: str = "") -> Target:
    """The client, imported if it can be, else read from source. Raises BackendUnavailable when neither works."""
    try:
        return live_target(reference, import_foreign(reference, needed_by=needed_by, install=install))
    except BackendUnavailable as failure:
        module, _, name = reference.partition(":")
        found = resolve(module, name)
        if found is None:
            raise
        target = source_target(reference, found)
        # A run would have to import it, too.
        cannot = Finding(f"the client cannot be imported here: {failure.message}", stops=True)
        return replace(target, findings=(*target.findings, cannot))


def _check_backend(spec: BackendSpec) -> PartReport:
    """Judge the backend's class against the contract.

    A built-in one is read from source and what it imports is looked up: importing it would load torch, which
    takes seconds and tells nothing more of rlctl's own code. A plugin's is imported, as a run would.
    """
    # The contract needs numpy; this module is also used to list what is wrong with an installation.
    from rlctl.backends.base import Backend

    module, _, name = spec.backend.partition(":")
    found = resolve(module, name) if spec.origin == BUILT_IN else None
    contract, package = of_class(Backend), package_of(spec.backend)
    if found is None:
        return judge(live_target(spec.backend, spec.load("backend")), contract, part="backend", package=package)
    refuse_missing_imports(spec)
    return judge(source_target(spec.backend, found), contract, part="backend", package=package)


def _no_adapter(spec: BackendSpec, *, stops: bool) -> tuple[Finding, ...]:
    if spec.backend:
        return ()
    return (Finding(f"rlctl has no adapter for {spec.name!r} yet in this version", stops),)


def _no_protocol(spec: BackendSpec) -> tuple[Finding, ...]:
    if spec.protocol or spec.contract or not spec.client:
        return ()
    return (Finding(f"client {spec.client} is not checked: it is registered without a protocol", stops=False),)
