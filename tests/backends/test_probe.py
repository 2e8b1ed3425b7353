from __future__ import annotations

import abc
import dataclasses
import functools
import sys
import textwrap
from typing import Any, Protocol, overload
from unittest import mock

import pydantic
import pytest

from rlctl.backends import calling, probe, registry
from rlctl.backends.base import Backend
from rlctl.backends.registry import BackendSpec
from rlctl.errors import BackendUnavailable, ConfigError
from tests.backends import clients
from tests.backends.clients import ActorHandle, AsyncCallable, GoodClient, Shapes, SyncClient, retried

HERE = __name__
SPEC = BackendSpec("toy", protocol="tests.backends.clients:Contract", install="pip install toy")


class ShapesContract(Protocol):
    """Asks for every method of Shapes, each of which takes `n`."""

    async def plain(self, n: int) -> Any: ...
    async def part(self, n: int) -> Any: ...
    async def static(self, n: int) -> Any: ...
    async def of_class(self, n: int) -> Any: ...
    async def wrapped(self, n: int) -> Any: ...
    async def wrapped_namelessly(self, n: int) -> Any: ...
    async def callable_object(self, n: int) -> Any: ...
    async def part_of_callable_object(self, n: int) -> Any: ...
    async def expression(self, n: int) -> Any: ...
    async def cached(self, n: int) -> Any: ...
    async def streamed(self, n: int) -> Any: ...


class Tripwire(Exception):
    """Raised by everything that a check must not touch."""


class CustomDescriptor:
    def __get__(self, instance: object, owner: object) -> object:
        raise Tripwire


@pytest.fixture
def offer(monkeypatch):
    """Puts an object into this module under the name `target` and checks it as a --client."""

    def check(thing: object, spec: BackendSpec = SPEC) -> probe.Report:
        monkeypatch.setattr(sys.modules[HERE], "target", thing, raising=False)
        return probe.check(spec, client=f"{HERE}:target")

    return check


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes modules, each as {path without .py: text}, into a folder on the path."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(files: dict[str, str]) -> None:
        for path, text in files.items():
            file = tmp_path / f"{path}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text))

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] in {path.stem for path in tmp_path.iterdir()}]:
        del sys.modules[name]


def methods(report: probe.Report) -> dict[str, probe.MethodReport]:
    (part,) = report.parts
    return {method.name: method for method in part.methods}


def found(report: probe.Report, name: str = "generate") -> str:
    return methods(report)[name].found


def with_generate(generate: object) -> type:
    return type("Client", (GoodClient,), {"generate": generate})


def test_good_client_could_start_a_run(offer):
    report = offer(GoodClient)
    assert report.can_run
    assert {(method.found, method.call, method.findings) for method in methods(report).values()} == {
        ("async", "awaited", ())
    }


def test_every_shape_is_found_as_the_run_will_call_it(offer):
    spec = BackendSpec("toy", protocol=f"{HERE}:ShapesContract")
    report = offer(Shapes, spec)
    says = {
        "async": "async",
        "unknown": "unknown, decided at call",
        "async generator": "async generator",
    }
    assert report.can_run
    for name, method in methods(report).items():
        style = calling.style(getattr(Shapes(), name))
        assert (name, method.found, method.call) == (name, says[style], calling.HOW[style])


def test_what_stands_behind_an_unknown_is_told(offer):
    spec = BackendSpec("toy", protocol=f"{HERE}:ShapesContract")
    notes = {name: method.note for name, method in methods(offer(Shapes, spec)).items()}
    assert notes["wrapped"] == "decorated; wraps a method that is async"
    assert notes["callable_object"] == "an object whose __call__ is async"
    assert notes["part_of_callable_object"] == "an object whose __call__ is async"
    assert notes["expression"] == "a lambda"
    assert notes["cached"] == "cached: the second equal call gets a coroutine that is used up"


def test_instance_is_judged_like_its_class(offer):
    spec = BackendSpec("toy", protocol=f"{HERE}:ShapesContract")
    assert methods(offer(Shapes(), spec)) == methods(offer(Shapes, spec))


def test_sync_missing_and_renamed_are_three_findings_and_stop_a_run(offer):
    class Client:
        def generate(self, texts: list[str]) -> list[str]:
            return texts

        async def step(self) -> dict[str, float]:
            return {}

    report = offer(Client)
    assert [finding.text for finding in methods(report)["generate"].findings] == [
        "is sync, where async is expected",
        "parameter 'prompts' is renamed to 'texts'",
        "parameter 'n' is missing",
    ]
    assert not report.can_run
    assert len(report.stopping) == 2


def test_sync_alone_is_a_finding_that_stops_nothing(offer):
    class Client(GoodClient):
        def step(self) -> dict[str, float]:
            return {}

    report = offer(Client)
    assert methods(report)["step"].call == "in a thread, awaited if it returns an awaitable"
    assert methods(report)["step"].findings == (probe.Finding("is sync, where async is expected", False),)
    assert report.can_run


async def _keyword_only(self, *, prompts, n=1): ...
async def _positional_only(self, prompts, n=1, /): ...
async def _swapped(self, n=1, prompts=None): ...
async def _needs_more(self, prompts, *, n=1, model): ...
async def _other_default(self, prompts, *, n=4): ...
async def _no_default(self, prompts, *, n): ...
async def _optional_more(self, prompts, n=1, model="x"): ...
async def _anything(self, *args, **kwargs): ...
async def _by_name(self, **kwargs): ...
async def _by_position(self, prompts, *rest): ...
async def _renamed_keyword(self, prompts, *, n_samples, nn=1): ...


@pytest.mark.parametrize(
    ("generate", "text", "stops"),
    [
        (_keyword_only, "parameter 'prompts' is keyword-only here, rlctl may pass it by position", True),
        (_positional_only, "parameter 'n' is positional-only here, rlctl passes it by name", True),
        (_swapped, "parameter 'prompts' is number 2 here, where rlctl passes it as number 1", True),
        (_needs_more, "parameter 'model' is required, and rlctl does not pass it", True),
        (_other_default, "default of 'n' is 4, where 1 is expected", False),
        (_no_default, "parameter 'n' has no default here, rlctl may leave it out", True),
        (_by_name, "parameter 'prompts' is taken by name only", True),
        (_by_position, "parameter 'n' is missing", True),
        (_renamed_keyword, "parameter 'n' is renamed to 'nn'", True),
    ],
)
def test_signature_differences(offer, generate, text, stops):
    assert probe.Finding(text, stops) in methods(offer(with_generate(generate)))["generate"].findings


@pytest.mark.parametrize("generate", [_optional_more, _anything])
def test_signatures_that_fit_any_call_have_no_finding(offer, generate):
    assert methods(offer(with_generate(generate)))["generate"].findings == ()


def test_absent_method_is_missing_and_stops(offer):
    report = offer(SyncClient)
    assert found(report, "step") == "missing"
    assert methods(report)["step"].call == "cannot be called"
    assert "step: is missing" in report.stopping


def _trip(self: object) -> None:
    raise Tripwire


@pytest.mark.parametrize("thing", [property(_trip), functools.cached_property(_trip)])
def test_property_is_not_triggered_and_stops(offer, thing):
    client = with_generate(thing)
    for target in (client, client()):
        report = offer(target)
        assert found(report) == "property"
        assert not report.can_run


def test_descriptor_is_not_triggered(offer):
    client = with_generate(CustomDescriptor())
    for target in (client, client()):
        assert methods(offer(target))["generate"].note == "a descriptor (CustomDescriptor), not triggered"


def test_getattr_is_not_asked(offer):
    class Client:
        async def generate(self, prompts: list[str], *, n: int = 1) -> None: ...

        def __getattr__(self, name: str) -> object:
            raise Tripwire

    for target in (Client, Client()):
        report = offer(target)
        assert found(report, "step") == "unknown, decided at call"
        assert methods(report)["step"].note == "not defined, but the class has a __getattr__"
        assert report.can_run


def test_inherited_methods_count(offer):
    assert found(offer(type("Below", (GoodClient,), {}))) == "async"


def test_slots(offer):
    class Slotted:
        __slots__ = ("generate",)

    client = Slotted()
    assert methods(offer(Slotted))["generate"].note == "a slot, filled on the object"
    assert found(offer(client)) == "missing"
    client.generate = GoodClient().generate
    assert found(offer(client)) == "async"


def test_method_set_on_the_object_is_seen_there(offer):
    client = SyncClient()
    client.generate = AsyncCallable()
    assert methods(offer(client))["generate"].note == "an object whose __call__ is async"


def test_partialmethod_is_judged_by_what_it_fills(offer):
    async def general(self, model, prompts, *, n=1): ...

    report = offer(with_generate(functools.partialmethod(general, "m")))
    assert (found(report), methods(report)["generate"].findings) == ("async", ())


def test_compiled_method_is_unknown_and_its_signature_unread(offer):
    report = offer(with_generate(dict.pop))
    assert found(report) == "unknown, decided at call"
    assert methods(report)["generate"].note == "compiled code"


def test_decorated_sync_method_is_sync(offer):
    assert found(offer(with_generate(retried(_sync)))) == "sync"


def _sync(self, prompts, *, n=1): ...


class PydanticClient(pydantic.BaseModel):
    url: str = ""
    step: Any = None

    async def generate(self, prompts: list[str], *, n: int = 1) -> list[str]:
        return prompts


def test_pydantic_class_is_judged_like_any_other(offer):
    report = offer(PydanticClient)
    assert found(report) == "async"
    assert methods(report)["step"].note == "declared as an attribute, set on the object"
    assert found(offer(type("NoStep", (pydantic.BaseModel,), {})), "step") == "missing"


class AbstractClient(abc.ABC):
    @abc.abstractmethod
    async def generate(self, prompts: list[str], *, n: int = 1) -> list[str]: ...

    @abc.abstractmethod
    async def step(self) -> dict[str, float]: ...


def test_abstract_class_implements_nothing(offer):
    report = offer(AbstractClient)
    assert found(report) == "missing"
    assert methods(report)["generate"].note == "only declared (abstract), not implemented"


def test_protocol_is_no_client(offer):
    report = offer(clients.Contract)
    assert report.stopping == [f"{HERE}:target is a Protocol, which describes a client and is none"]


def make_client(url: Undefined = None) -> GoodClient:  # noqa: F821  # as a type-checking import is at run time
    raise Tripwire


async def make_later() -> GoodClient | None:
    raise Tripwire


def make_abstract() -> AbstractClient:
    raise Tripwire


def make_something(url):
    raise Tripwire


def make_either() -> GoodClient | SyncClient:
    raise Tripwire


@pytest.mark.parametrize(
    "factory",
    [make_client, make_later, make_abstract, functools.partial(make_client, "x"), functools.partial(GoodClient)],
)
def test_factory_is_judged_by_the_class_it_is_annotated_to_return(offer, factory):
    report = offer(factory)
    assert report.parts[0].kind.startswith("factory of ")
    assert report.can_run


@pytest.mark.parametrize("factory", [make_something, make_either])
def test_factory_that_does_not_say_what_it_returns_is_no_evidence(offer, factory):
    report = offer(factory)
    assert report.parts[0].methods == ()
    assert "does not say" in report.stopping[0]


@pytest.mark.parametrize("thing", [mock.AsyncMock(), mock.MagicMock(), mock.MagicMock(spec=GoodClient)])
def test_mock_is_no_evidence(offer, thing):
    report = offer(thing)
    assert found(report) == "mock: not evidence"
    assert not report.can_run


@pytest.mark.parametrize("thing", [mock.AsyncMock(), mock.MagicMock(spec=_sync), mock.create_autospec(_sync)])
def test_mocked_method_is_no_evidence(offer, thing):
    report = offer(with_generate(thing))
    assert found(report) == "mock: not evidence"
    assert not report.can_run


def test_object_with_ray_actor_methods(offer):
    report = offer(ActorHandle())
    assert (found(report), methods(report)["generate"].call) == ("ray actor method", ".remote(...), awaited")


def test_ray_actor_class_is_judged_by_the_class_it_was_made_of(offer):
    @dataclasses.dataclass
    class Metadata:
        modified_class: type

    class ActorClass:
        __ray_metadata__ = Metadata(GoodClient)

    report = offer(ActorClass())
    assert report.parts[0].kind == "Ray actor class"
    assert methods(report)["generate"].call == ".remote(...), awaited"
    assert report.can_run


@pytest.mark.ray
@pytest.mark.slow
def test_real_ray_actor_class_and_handle(offer, cluster):
    ray = pytest.importorskip("ray")
    actor = ray.remote(GoodClient)
    assert methods(offer(actor))["generate"].call == ".remote(...), awaited"
    handle = actor.remote()
    report = offer(handle)
    ray.kill(handle)
    assert {method.found for method in methods(report).values()} == {"ray actor method"}
    assert report.can_run


CLIENT_SOURCE = """
    import missing_dep
    from typing import overload
    from .base import Base

    class Client(Base):
        @overload
        def generate(self, prompts: str) -> str: ...
        @overload
        def generate(self, prompts: list[str]) -> list[str]: ...
        async def generate(self, prompts, *, n: int = 1):
            return prompts

    def make(url: str) -> "Client":
        return Client()
"""
BASE_SOURCE = """
    class Base:
        async def step(self, learning_rate: float | None = None) -> dict: ...
"""


@pytest.mark.parametrize(
    "init",
    [
        "from .client import Client, make",
        "from shop.client import *",
        "from .client import Client as Inner, make\nClient = Inner",
        "_LAZY = {'Client': '.client', 'make': 'shop.client'}\ndef __getattr__(name): raise ImportError('vllm')",
        "_STRUCTURE = {'client': ['Client', 'make']}\nraise ValueError('no such device')",
        "def __getattr__(name):\n    from .client import Client, make\n    return Client",
        "from importlib import import_module as m\ndef __getattr__(name): return getattr(m('shop' '.client'), name)",
    ],
)
@pytest.mark.parametrize("target", ["Client", "make"])
def test_client_that_cannot_be_imported_is_read_from_source(package, init, target):
    package({"shop/__init__": init, "shop/client": CLIENT_SOURCE, "shop/base": BASE_SOURCE})
    report = probe.check(SPEC, client=f"shop:{target}")
    assert [(m.name, m.found, m.findings) for m in report.parts[0].methods] == [
        ("generate", "async", ()),
        ("step", "async", ()),
    ]
    assert report.parts[0].read.startswith("read from source: ")
    assert report.parts[0].read.endswith("client.py")


def test_source_is_read_with_the_reason_and_a_run_could_not_import_it_either(package):
    package({"shop/__init__": "", "shop/client": CLIENT_SOURCE, "shop/base": BASE_SOURCE})
    report = probe.check(SPEC, client="shop.client:Client")
    assert not report.can_run
    reason = "--client needs 'shop.client'; that is installed, but shop.client imports 'missing_dep', which is not."
    assert report.stopping == [f"the client cannot be imported here: {reason}"]


def test_source_is_found_in_a_package_without_init(package):
    package({"shop/sub/client": CLIENT_SOURCE, "shop/sub/base": BASE_SOURCE})
    report = probe.check(SPEC, client="shop.sub.client:Client")
    assert found(report, "step") == "async"


@pytest.mark.parametrize(
    ("body", "says", "note"),
    [
        ("def generate(self, prompts, *, n=1): ...", "sync", ""),
        ("async def generate(self, prompts, *, n=1):\n    yield 1", "async generator", ""),
        ("async def generate(self, prompts, *, n=1):\n    def g():\n        yield 1\n    return g", "async", ""),
        ("def generate(self, prompts, *, n=1) -> Awaitable[dict]: ...", "returns awaitable", ""),
        ("@staticmethod\nasync def generate(prompts, *, n=1): ...", "async", ""),
        ("@classmethod\nasync def generate(cls, prompts, *, n=1): ...", "async", ""),
        ("@property\ndef generate(self): ...", "property", ""),
        ("@functools.cached_property\ndef generate(self): ...", "property", ""),
        (
            "@retry(times=3)\nasync def generate(self, prompts, *, n=1): ...",
            "unknown, decided at call",
            "async def, decorated with @retry",
        ),
        ("generate = make_generate()", "unknown, decided at call", "assigned: generate = make_generate()"),
        ("generate: Callable", "unknown, decided at call", "declared as an attribute, set on the object"),
        (
            "@abstractmethod\nasync def generate(self, prompts, *, n=1): ...",
            "missing",
            "only declared (abstract), not implemented",
        ),
        ("if True:\n    async def generate(self, prompts, *, n=1): ...", "async", ""),
        (
            "def __getattr__(self, name): ...",
            "unknown, decided at call",
            "not defined, but the class has a __getattr__",
        ),
        ("pass", "missing", ""),
    ],
)
def test_method_read_from_source(package, body, says, note):
    package({"shop": "import missing_dep\nclass Client:\n" + textwrap.indent(body, "    ") + "\n"})
    method = methods(probe.check(SPEC, client="shop:Client"))["generate"]
    assert (method.found, method.note) == (says, note)


def test_base_whose_source_is_not_here_leaves_methods_unknown(package):
    package({"shop": "import missing_dep\nclass Client(missing_dep.Base): ...\n"})
    method = methods(probe.check(SPEC, client="shop:Client"))["generate"]
    assert method.note == "may come from Base, whose source is not here"


@pytest.mark.parametrize("generate", [_keyword_only, _needs_more, _other_default, _renamed_keyword, _anything])
def test_source_and_object_give_the_same_findings(offer, package, generate):
    import inspect

    source = inspect.getsource(generate).replace(generate.__name__, "generate")
    package({"shop": "import missing_dep\nclass Client:\n" + textwrap.indent(source, "    ")})
    live = methods(offer(with_generate(generate)))["generate"]
    assert methods(probe.check(SPEC, client="shop:Client"))["generate"] == live


@pytest.mark.parametrize(
    "reference", ["", "no_colon", ":Client", "tests.backends.clients:", "no_such_module:C", "tests.backends.clients:No"]
)
def test_client_that_names_nothing_is_a_config_error_with_the_value(reference):
    with pytest.raises(ConfigError) as caught:
        probe.check(SPEC, client=reference)
    assert repr(reference) in caught.value.message
    assert caught.value.hint


def test_client_for_a_backend_that_drives_none_is_a_config_error():
    with pytest.raises(ConfigError, match="drives no client"):
        probe.check(registry.get("local"), client="a:B")


def test_registered_client_that_is_not_installed_names_the_install_line():
    spec = dataclasses.replace(SPEC, client="no_such_package.client:Client")
    with pytest.raises(BackendUnavailable) as caught:
        probe.check(spec)
    assert caught.value.hint == "pip install toy"


def test_backend_without_an_adapter_cannot_run_however_good_its_client():
    spec = dataclasses.replace(SPEC, client="tests.backends.clients:GoodClient")
    report = probe.check(spec)
    assert report.stopping == ["rlctl has no adapter for 'toy' yet in this version"]
    assert probe.check(spec, client="tests.backends.clients:GoodClient").can_run


def test_client_without_a_protocol_is_said_not_to_be_checked():
    report = probe.check(BackendSpec("toy", client="a.b:C"))
    assert report.findings[1].text == "client a.b:C is not checked: it is registered without a protocol"


BACKEND_SOURCE = """
    from rlctl.backends.base import Backend

    class ToyBackend(Backend):
        async def start(self): ...
        async def generate(self, prompts, *, n, sampling): ...
        async def log_probs(self, rows, *, reference=False): ...
        async def forward_backward(self, rows, *, loss, loss_denominator): ...
        async def optim_step(self, lr): ...
        async def sync_weights(self): ...
        async def save(self, path): ...
        async def load(self, path): ...
        async def close(self): ...
"""


@pytest.mark.parametrize("origin", ["built-in", "entry point of toy"])
def test_backend_that_keeps_the_contract_could_start(package, origin):
    package({"toybackend": BACKEND_SOURCE})
    report = probe.check(BackendSpec("toy", backend="toybackend:ToyBackend", origin=origin))
    assert report.can_run, report.stopping
    verbs = {name for name, value in vars(Backend).items() if callable(value) and not name.startswith("_")}
    assert {method.name for method in report.parts[0].methods} == verbs


@pytest.mark.parametrize("origin", ["built-in", "entry point of toy"])
def test_backend_is_awaited_as_it_stands_so_a_sync_verb_stops(package, origin):
    source = BACKEND_SOURCE.replace("async def load", "def load").replace("async def close(self): ...", "")
    package({"toybackend": source})
    report = probe.check(BackendSpec("toy", backend="toybackend:ToyBackend", origin=origin))
    assert report.stopping == ["load: is sync, where async is expected", "close: is missing"]
    assert methods(report)["load"].call == "cannot be awaited"


def test_built_in_backend_is_read_without_importing_what_it_needs(package):
    package({"toybackend": "import missing_a\n" + textwrap.dedent(BACKEND_SOURCE)})
    with pytest.raises(BackendUnavailable) as caught:
        probe.check(BackendSpec("toy", backend="toybackend:ToyBackend", origin="built-in", install="pip install toy"))
    assert caught.value.message == "Backend 'toy' needs 'missing_a' (imported by toybackend), which is not installed."
    assert caught.value.hint == "pip install toy"


def test_imports_inside_functions_and_of_own_modules_count_but_optional_ones_do_not(package):
    package(
        {
            "toy/__init__": "",
            "toy/backend": "from toy.deep import helper\nfrom . import other\n" + textwrap.dedent(BACKEND_SOURCE),
            "toy/deep": "def helper():\n    import missing_b\n",
            "toy/other": """
            from typing import TYPE_CHECKING
            if TYPE_CHECKING:
                import missing_c
            try:
                import missing_d
            except ImportError:
                missing_d = None
        """,
        }
    )
    with pytest.raises(BackendUnavailable) as caught:
        probe.check(BackendSpec("toy", backend="toy.backend:ToyBackend", origin="built-in"))
    assert caught.value.message == "Backend 'toy' needs 'missing_b' (imported by toy.deep), which is not installed."


def test_plugin_backend_is_imported_so_that_what_it_raises_shows(package):
    package({"toybackend": "raise ValueError('no such device')"})
    with pytest.raises(BackendUnavailable, match="ValueError: no such device"):
        probe.check(BackendSpec("toy", backend="toybackend:ToyBackend", origin="entry point of toy"))


def test_overloads_of_a_live_class_are_one_method(offer):
    class Client(GoodClient):
        @overload
        def generate(self, prompts: str) -> str: ...
        @overload
        def generate(self, prompts: list[str], *, n: int = 1) -> list[str]: ...
        async def generate(self, prompts, *, n=1):
            return prompts

    assert methods(offer(Client))["generate"].findings == ()


def test_a_module_given_as_the_client_is_judged_and_not_a_traceback(offer):
    import json.decoder

    report = offer(json.decoder)
    assert not report.can_run
    assert {method.found for method in methods(report).values()} == {"missing"}
