"""What a run calls on a target, as data: from a Protocol class, or from a contract file shipped with an adapter.

A contract file is TOML. It names the clients of which a run takes the first that is installed, and the methods:

    distribution = "toy-client"           # whose version is told
    known = ["weight_norm"]               # methods that clients have and no run calls

    [[client]]
    name = "http"
    target = "toy_client.http:Client"
    since = "1.0"

    [[method]]
    name = "generate"
    style = "async"                       # async, sync or any
    styles = { http = "sync" }            # where one client differs
    parameters = "prompts, *, sampling_params"   # as a run passes them
    reply = ["token_ids"]                 # keys that a run reads
    clients = ["http"]                    # left out: all
    optional = true                       # only some runs call it
    since = "1.0"
    until = "2.0"
"""

from __future__ import annotations

import ast
import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import util
from inspect import Signature
from pathlib import Path
from typing import Any

from rlctl.backends import calling
from rlctl.backends.probe.live import live_method
from rlctl.backends.probe.source_classes import signature_of
from rlctl.errors import ConfigError

STYLES = ("async", "sync", "any")


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a contract."""

    name: str
    style: calling.Style | None
    """None accepts every style that can be called."""
    signature: Signature | None
    reply: tuple[str, ...] = ()
    versions: str = ""
    optional: bool = False
    """Whether only some runs call it."""


@dataclass(frozen=True, slots=True)
class Contract:
    """The methods that a run calls on one target, and names that it knows besides."""

    methods: tuple[Method, ...]
    known: frozenset[str] = frozenset()
    lists_extras: bool = False
    """Whether public methods that it does not know are worth telling."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client that a contract file names, with its own contract."""

    name: str
    target: str
    versions: str
    contract: Contract


@dataclass(frozen=True, slots=True)
class ContractFile:
    """A contract file as it was read."""

    distribution: str
    clients: tuple[Client, ...]


def of_class(contract: type) -> Contract:
    """The public methods that a contract's class, or one it builds on, defines, in their order."""
    names = {
        name: None
        for cls in reversed(contract.__mro__)
        for name, member in vars(cls).items()
        if isinstance(member, types.FunctionType) and not name.startswith("_") and cls.__module__ != "typing"
    }
    found = {name: live_method(contract, name) for name in names}
    # A declared method has a style of calling's own; "missing" and "property" cannot be said of a function.
    return Contract(tuple(Method(name, each.style, each.signature) for name, each in found.items()))  # type: ignore[arg-type]


def read_contract(reference: str) -> ContractFile:
    """The contract file "package:file.toml". Raises ConfigError naming what is wrong with it."""
    package, _, file = reference.partition(":")
    try:
        spec = util.find_spec(package)
        folders = list(spec.submodule_search_locations or ()) if spec else []
        path = Path(folders[0], file)
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ImportError, IndexError, OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"contract {reference} cannot be read: {type(error).__name__}: {error}.",
            hint="name it package:file.toml, of a file that is installed inside the package.",
        ) from error
    return _parsed(table, reference)


def _parsed(table: Mapping[str, Any], where: str) -> ContractFile:
    clients, methods = _tables(table, "client", where), _tables(table, "method", where)
    names = [_text(client, "name", where) for client in clients]
    known = frozenset(map(str, table.get("known", [])))
    for method in methods:
        _check_method(method, names, where)
    return ContractFile(
        str(table.get("distribution", "")),
        tuple(
            Client(
                name,
                _text(client, "target", where),
                _versions(client),
                Contract(tuple(_method(m, name) for m in methods if name in m.get("clients", names)), known, True),
            )
            for name, client in zip(names, clients, strict=True)
        ),
    )


def _tables(table: Mapping[str, Any], name: str, where: str) -> list[dict[str, Any]]:
    found = table.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(each, dict) for each in found):
        raise ConfigError(f"contract {where} has no [[{name}]] tables.")
    return found


def _text(table: Mapping[str, Any], name: str, where: str) -> str:
    value = table.get(name)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"contract {where}: {name} = {value!r} must be a text, in {dict(table)}.")
    return value


def _check_method(method: Mapping[str, Any], clients: list[str], where: str) -> None:
    name = _text(method, "name", where)
    fields = {"name", "style", "styles", "parameters", "reply", "clients", "since", "until", "optional"}
    if unknown := sorted(method.keys() - fields):
        raise ConfigError(f"contract {where}: method {name} has {', '.join(unknown)}; it can have {sorted(fields)}.")
    styles = [method.get("style", "any"), *method.get("styles", {}).values()]
    if wrong := [style for style in styles if style not in STYLES]:
        raise ConfigError(f"contract {where}: style {wrong[0]!r} of method {name} is none of {', '.join(STYLES)}.")
    named = [*method.get("clients", []), *method.get("styles", {})]
    if strange := [client for client in named if client not in clients]:
        raise ConfigError(f"contract {where}: method {name} names client {strange[0]!r}; they are {clients}.")
    try:
        _signature(str(method.get("parameters", "")))
    except SyntaxError as error:
        raise ConfigError(f"contract {where}: parameters of method {name} are no Python: {error.msg}.") from error


def _method(method: Mapping[str, Any], client: str) -> Method:
    style = method.get("styles", {}).get(client, method.get("style", "any"))
    return Method(
        method["name"],
        None if style == "any" else style,
        _signature(str(method.get("parameters", ""))),
        tuple(map(str, method.get("reply", []))),
        _versions(method),
        bool(method.get("optional", False)),
    )


def _signature(parameters: str) -> Signature:
    (function,) = ast.parse(f"def f({parameters}): ...").body
    assert isinstance(function, ast.FunctionDef), "that is what was written"
    return signature_of(function.args, drop_first=False)


def _versions(table: Mapping[str, Any]) -> str:
    since, until = table.get("since"), table.get("until")
    words = [f"since {since}"] * bool(since) + [f"until {until}"] * bool(until)
    return ", ".join(words)
