"""Contract files, and the lock that pins what a check saw."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rlctl.backends import probe
from rlctl.backends.probe.contracts import read_contract
from rlctl.backends.probe.lock import drift, write_lock
from rlctl.backends.registry import BackendSpec
from rlctl.errors import ConfigError

CONTRACT = """
known = ["ping"]

[[client]]
name = "new"
target = "lib_contract.new:Client"
since = "2.0"

[[client]]
name = "old"
target = "lib_contract.old:Client"
until = "2.0"

[[method]]
name = "generate"
style = "async"
styles = { old = "sync" }
parameters = "prompts, *, n"
reply = ["ids"]
since = "1.0"

[[method]]
name = "sync"
style = "sync"
clients = ["new"]
"""
OLD = """
class Client:
    def generate(self, prompts, n=1): ...
    def ping(self): ...
"""
NEW = """
class Client:
    async def generate(self, prompts, count, *, n=1): ...
    async def sync(self): ...
    async def ping(self): ...
    async def forecast(self, days=3): ...
    @property
    def name(self): ...
"""
NO_ADAPTER = "rlctl has no adapter for 'toy' yet in this version"
SPEC = BackendSpec("toy", contract="lib_contract:contract.toml", install="pip install toy")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a package `lib_contract` of a contract and some modules, and forgets it again."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "lib_contract"
    folder.mkdir()

    def write(contract: str = CONTRACT, **modules: str) -> None:
        forget()
        (folder / "__init__.py").touch()
        (folder / "contract.toml").write_text(contract)
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(text))

    def forget() -> None:
        for name in [name for name in sys.modules if name.startswith("lib_contract")]:
            del sys.modules[name]

    yield write
    forget()


def test_each_installed_client_is_judged_by_its_own_methods_and_the_first_decides(package: Any) -> None:
    package(old=OLD, new=NEW)
    new, old = probe.check(SPEC).parts
    assert (new.name, new.decides, old.name, old.decides) == ("new", True, "old", False)
    assert (old.missing, old.extra, old.style_changed, old.signature_changed) == ((), (), (), ())
    assert (old.methods[0].expected, old.methods[0].reply, old.methods[0].versions) == ("sync", ("ids",), "since 1.0")


def test_missing_extra_style_and_signature_are_told_apart(package: Any) -> None:
    package(new=NEW.replace("    async def generate(self, prompts, count, *, n=1): ...\n", ""))
    (new,) = probe.check(SPEC).parts
    assert (new.missing, new.style_changed) == (("generate",), ("sync",))
    package(new=NEW)
    report = probe.check(SPEC)
    (new,) = report.parts
    assert new.extra == ("async forecast(days=3)",)
    assert new.signature_changed == ("generate",)
    assert report.stopping == [NO_ADAPTER, "generate: parameter 'count' is required, and rlctl does not pass it"]


def test_what_is_wrong_with_an_older_client_stops_no_run(package: Any) -> None:
    package(new=NEW.replace("count, ", ""), old="class Client: ...")
    report = probe.check(SPEC)
    assert report.parts[1].missing == ("generate",)
    assert report.stopping == [NO_ADAPTER]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("[[method]]", "[[methode]]"), "has no [[method]] tables"),
        (('"prompts, *, n"', '"prompts, *"'), "parameters of method generate are no Python"),
        (('style = "async"', 'style = "asynk"'), "style 'asynk' of method generate is none of async, sync, any"),
        (('clients = ["new"]', 'clients = ["newer"]'), "method sync names client 'newer'; they are ['new', 'old']"),
        (('since = "1.0"', 'sinec = "1.0"'), "method generate has sinec"),
        (('name = "generate"', "name = 3"), "name = 3 must be a text"),
        (("known =", "known"), "cannot be read: TOMLDecodeError"),
    ],
)
def test_a_contract_file_that_is_wrong_says_where(package: Any, change: tuple[str, str], told: str) -> None:
    package(CONTRACT.replace(*change))
    with pytest.raises(ConfigError) as caught:
        read_contract("lib_contract:contract.toml")
    assert told in caught.value.message


@pytest.mark.parametrize("reference", ["nowhere_at_all:contract.toml", "lib_contract:other.toml", "json:x.toml"])
def test_a_contract_that_is_not_there_is_named(package: Any, reference: str) -> None:
    package()
    with pytest.raises(ConfigError, match=f"contract {reference} cannot be read"):
        read_contract(reference)


def test_a_lock_holds_until_anything_changes_and_then_says_what(package: Any, tmp_path: Path) -> None:
    package(new=NEW)
    lock = tmp_path / "toy.lock"
    write_lock(lock, probe.check(SPEC))
    assert drift(lock, probe.check(SPEC)) == []
    assert str(tmp_path) not in lock.read_text()
    package(
        new="""
        class Client:
            def generate(self, prompts, count, *, n=2): ...
            async def sync(self): ...
            async def forecast(self, days=7): ...
        """
    )
    part = "client lib_contract.new:Client"
    assert drift(lock, probe.check(SPEC)) == [
        f"{part}: generate: style was async, is sync",
        f"{part}: generate: signature was (prompts, count, *, n=1), is (prompts, count, *, n=2)",
        f"{part}: generate: called was awaited, is in a thread, awaited if it returns an awaitable",
        f"{part}: async forecast(days=3) is gone",
        f"{part}: async forecast(days=7) is new",
    ]


NO_LOCKS = [
    "", "[]", "{}", "null", '{"rlctl_lock": 2, "backend": "toy", "parts": {}}', "\x00",
    '{"rlctl_lock": 1, "backend": "toy", "parts": {"a": {"methods": {"generate": 5}, "extra": []}}}',
    '{"rlctl_lock": 1, "backend": "toy", "parts": {"a": {"methods": {}, "extra": [1, "b"]}}}',
]  # fmt: skip


@pytest.mark.parametrize("text", NO_LOCKS)
def test_a_file_that_is_no_lock_is_refused(package: Any, tmp_path: Path, text: str) -> None:
    package(new=NEW)
    (tmp_path / "toy.lock").write_text(text)
    with pytest.raises(ConfigError, match="is no lock of this version"):
        drift(tmp_path / "toy.lock", probe.check(SPEC))


def test_a_lock_of_another_backend_or_none_is_refused(package: Any, tmp_path: Path) -> None:
    package(new=NEW)
    report = probe.check(SPEC)
    lock = tmp_path / "toy.lock"
    write_lock(lock, report)
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "backend": "other"}))
    with pytest.raises(ConfigError, match="written for backend 'other', not 'toy'"):
        drift(lock, report)
    with pytest.raises(ConfigError, match="No such file"):
        drift(tmp_path / "none", report)
    with pytest.raises(ConfigError, match=r"--write-lock .*No such file"):
        write_lock(tmp_path / "no" / "folder", report)
