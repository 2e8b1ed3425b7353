"""Plugins are real here: modules and dist-info folders in a temporary directory, looked up by a fresh process.

A fresh process, because a plugin registers itself by being imported, which happens once in a process.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rlctl.backends import registry
from rlctl.errors import BackendNotFound, BackendUnavailable, ConfigError

REGISTER = """
from rlctl.backends.registry import register
register({name!r}, backend="{module}:ToyBackend", settings="{module}:ToySettings", install="pip install {name}")
"""


class Site:
    """A directory on the path of a fresh process, to put modules and distributions in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, name: str, text: str) -> None:
        (self.folder / f"{name}.py").write_text(textwrap.dedent(text))

    def distribution(self, name: str, *, version: str = "1.0", **entry_points: str) -> None:
        folder = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [f"{key} = {value}" for key, value in entry_points.items()]
        (folder / "entry_points.txt").write_text("\n".join(["[rlctl.backends]", *lines, ""]))

    def run(self, code: str, *, plugins: str = "", standing_in: bool = False) -> str:
        """What the code prints; fails the test when it fails. Its folder is on the path, or the one it stands in."""
        path = os.pathsep.join([*([] if standing_in else [str(self.folder)]), str(Path(__file__).parents[2])])
        env = {**os.environ, "PYTHONPATH": path, "RLCTL_PLUGINS": plugins}
        code = f"from rlctl.backends import registry\nfrom rlctl.errors import *\n{textwrap.dedent(code)}"
        script = self.folder.with_suffix(".py")  # elsewhere: `python -c` would put its folder on the path
        script.write_text(code)
        where = self.folder if standing_in else None
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=env, cwd=where, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def failure(self, code: str, *, plugins: str = "") -> dict[str, str]:
        """The RlctlError that the code raises, as its class, message, hint and cause."""
        tried = f"""
import json
try:
    {code}
except RlctlError as error:
    print(json.dumps({{"type": type(error).__name__, "message": error.message, "hint": error.hint,
                      "cause": repr(error.__cause__), "exit": error.exit_code}}))
"""
        return json.loads(self.run(tried, plugins=plugins))

    def records(self, *, plugins: str = "") -> dict[str, dict[str, str]]:
        """What `rlctl plugins` lists, by origin."""
        code = """
            import dataclasses, json
            print(json.dumps([dataclasses.asdict(record) for record in registry.plugins()]))
        """
        return {record["origin"]: record for record in json.loads(self.run(code, plugins=plugins))}


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def toy(site, name="toy", module="toy_plugin", distribution="rlctl-toy"):
    site.module(module, REGISTER.format(name=name, module="toy_backend"))
    site.distribution(distribution, **{name: module})


def test_built_in_backend_is_known_without_importing_it():
    spec = registry.get("local")
    assert (spec.backend, spec.origin) == ("rlctl.backends.local.backend:LocalBackend", "built-in")
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.name = "other"


def test_registry_imports_nothing_heavy(site):
    heavy = "{'torch', 'numpy', 'pydantic', 'transformers', 'ray'}"
    toy(site)
    assert site.run(f"import sys; registry.get('toy'); registry.names(); print({heavy} & set(sys.modules))") == "set()"


def test_entry_point_is_found_by_its_name(site):
    toy(site)
    code = "spec = registry.get('toy'); print(spec.backend, '|', spec.origin, '|', spec.version)"
    assert site.run(code) == "toy_backend:ToyBackend | entry point of rlctl-toy | 1.0"


def test_module_of_the_variable_is_found(site):
    site.module("bare", REGISTER.format(name="bare", module="toy_backend"))
    assert site.run("print(registry.get('bare').origin)", plugins=" bare ,") == "RLCTL_PLUGINS module bare"


def test_module_of_the_variable_is_found_in_the_folder_one_stands_in(site):
    site.module("bare", REGISTER.format(name="bare", module="toy_backend"))
    origin = site.run("print(registry.get('bare').origin)", plugins="bare", standing_in=True)
    assert origin == "RLCTL_PLUGINS module bare"


def test_names_lists_all_three_doors_without_importing_entry_points(site):
    toy(site)
    site.module("bare", REGISTER.format(name="bare", module="toy_backend"))
    code = "import sys; print({'local', 'toy', 'bare'} <= set(registry.names()), 'toy_plugin' in sys.modules)"
    assert site.run(code, plugins="bare") == "True False"


@pytest.mark.parametrize("doors", ["entry point first", "variable first"])
def test_one_module_may_come_through_both_doors(site, doors):
    toy(site)
    first = "registry.get('toy')" if doors == "entry point first" else "registry.names()"
    assert site.run(
        f"{first}; print([r.error for r in registry.plugins() if r.name == 'toy'])", plugins="toy_plugin"
    ) == ("[None]")


def test_load_imports_the_class(site):
    toy(site)
    site.module("toy_backend", "class ToyBackend: pass\nclass ToySettings: pass\n")
    code = "spec = registry.get('toy'); print(spec.load('backend').__name__, spec.load('settings').__name__)"
    assert site.run(code) == "ToyBackend ToySettings"


def test_unknown_name_gets_the_nearest_the_known_and_both_hooks(site):
    failure = site.failure("registry.get('locl')")
    assert failure["type"] == "BackendNotFound"
    assert failure["exit"] == 2
    assert failure["message"] == "No backend is called 'locl'. Did you mean 'local'?"
    assert all(word in failure["hint"] for word in ("local", "'rlctl.backends'", "RLCTL_PLUGINS"))


def test_a_plugin_that_failed_is_told_with_its_cure(site):
    site.module("bare", "")
    failure = site.failure("registry.get('other')", plugins="bare")
    cure = f"(call rlctl.backends.registry.register at the top level of {site.folder / 'bare.py'}.)"
    assert "It may be in a plugin that failed: " in failure["message"]
    assert failure["message"].endswith(cure)


def test_backend_whose_package_is_not_installed_names_the_install_line(site):
    toy(site)
    failure = site.failure("registry.get('toy').load('backend')")
    assert failure["type"] == "BackendUnavailable"
    assert failure["exit"] == 3
    assert failure["message"] == "Backend 'toy' needs module 'toy_backend', which is not installed."
    assert failure["hint"] == "pip install toy"
    assert "ModuleNotFoundError" in failure["cause"]


def test_backend_that_lacks_a_dependency_names_it_and_who_needs_it(site):
    toy(site)
    site.module("toy_backend", "import toy_helper\nclass ToyBackend: pass\n")
    site.module("toy_helper", "import missing_dep\n")
    failure = site.failure("registry.get('toy').load('backend')")
    assert failure["type"] == "BackendUnavailable"
    assert failure["message"] == (
        "Backend 'toy' needs 'toy_backend'; that is installed, but toy_helper imports 'missing_dep', which is not."
    )
    assert failure["hint"] == "install the package that provides 'missing_dep', or reinstall: pip install toy"
    assert failure["cause"] == "ModuleNotFoundError(\"No module named 'missing_dep'\")"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('no such device')", "ValueError: no such device"),
        ("import sys; sys.exit('bye')", "SystemExit: bye"),
        ("import os\nfrom os import no_such_thing", "ImportError: cannot import name 'no_such_thing'"),
        ("def broken(:", "SyntaxError: invalid syntax"),
    ],
)
def test_backend_that_raises_while_imported_shows_what(site, body, said):
    toy(site)
    site.module("toy_backend", body)
    failure = site.failure("registry.get('toy').load('backend')")
    assert failure["type"] == "BackendUnavailable"
    assert failure["message"].startswith(f"Importing toy_backend, for backend 'toy', raised {said}")
    assert "toy_backend.py:" in failure["hint"]


def test_backend_without_the_class_says_so(site):
    toy(site)
    site.module("toy_backend", "")
    assert site.failure("registry.get('toy').load('backend')")["message"] == (
        "toy_backend has no 'ToyBackend', which backend 'toy' names."
    )


def test_failing_plugin_is_listed_and_hurts_nobody(site):
    toy(site)
    site.module("bad_plugin", "raise ValueError('broken on purpose')")
    site.distribution("rlctl-bad", bad="bad_plugin")
    records = site.records(plugins="no_such_module")
    assert records["entry point of rlctl-toy"]["error"] is None
    assert "ValueError: broken on purpose" in records["entry point of rlctl-bad"]["error"]
    assert "bad_plugin.py" in records["entry point of rlctl-bad"]["traceback"]
    assert "no_such_module" in records["RLCTL_PLUGINS module no_such_module"]["error"]
    assert (
        site.run("print(registry.get('toy').name, registry.get('local').name)", plugins="no_such_module") == "toy local"
    )


def test_failing_plugin_is_an_error_each_time_it_is_asked_for(site):
    site.module("bad_plugin", "raise ValueError('broken on purpose')")
    site.distribution("rlctl-bad", bad="bad_plugin")
    code = """
        for _ in range(2):
            try:
                registry.get("bad")
            except BackendUnavailable as error:
                print(error.message, "|", repr(error.__cause__))
    """
    line = (
        "Importing bad_plugin, for plugin 'bad' (entry point of rlctl-bad), raised ValueError: broken on purpose"
        " | ValueError('broken on purpose')"
    )
    assert site.run(code).splitlines() == [line, line]


def test_unknown_name_mentions_a_failed_module_of_the_variable(site):
    site.module("bad_plugin", "import missing_dep")
    failure = site.failure("registry.get('mine')", plugins="bad_plugin")
    assert failure["type"] == "BackendNotFound"
    assert "'missing_dep'" in failure["message"]
    assert "BackendUnavailable" in failure["cause"]


def test_what_a_plugin_announced_before_it_failed_is_withdrawn(site):
    site.module("bad_plugin", REGISTER.format(name="half", module="x") + "raise ValueError('half-way')")
    assert site.run("print('half' in registry.names())", plugins="bad_plugin") == "False"


@pytest.mark.parametrize("line", ["from rlctl import __version__", "from rlctl.backends.base import Backend"])
def test_plugin_may_import_rlctl_at_its_top(site, line):
    site.module("toy_plugin", line + REGISTER.format(name="toy", module="toy_backend"))
    site.distribution("rlctl-toy", toy="toy_plugin")
    assert site.run("print(registry.get('toy').name)") == "toy"


def test_plugin_may_ask_for_names_while_it_is_imported(site):
    site.module(
        "bare", "from rlctl.backends import registry\nregistry.names()" + REGISTER.format(name="bare", module="x")
    )
    assert site.run("print(registry.get('bare').name)", plugins="bare") == "bare"


def test_plugin_that_registers_another_name_is_told(site):
    site.module("toy_plugin", REGISTER.format(name="tyo", module="toy_backend"))
    site.distribution("rlctl-toy", toy="toy_plugin")
    message = site.failure("registry.get('toy')")["message"]
    assert "does not register backend 'toy'; it registers tyo." in message


def test_plugin_that_registers_nothing_is_told(site):
    site.module("bare", "")
    assert "does not register any backend" in site.records(plugins="bare")["RLCTL_PLUGINS module bare"]["error"]


def test_two_plugins_with_one_name_are_both_listed_and_neither_wins(site):
    toy(site)
    toy(site, module="other_plugin", distribution="rlctl-other")
    failure = site.failure("registry.get('toy')")
    assert failure["type"] == "ConfigError"
    assert "entry point of rlctl-toy" in failure["message"]
    assert "entry point of rlctl-other" in failure["message"]
    records = site.records()
    for origin in ("entry point of rlctl-toy", "entry point of rlctl-other"):
        assert "claimed by more than one plugin" in records[origin]["error"]


def test_plugin_cannot_take_a_built_in_name(site):
    toy(site, name="local")
    records = site.records()
    assert records["built-in"]["error"] is None
    assert records["entry point of rlctl-toy"]["error"] == (
        "Backend name 'local' is taken (built-in); entry point of rlctl-toy claims it too."
    )


@pytest.mark.parametrize("first", ["registry.names()", "registry.get('toy')"])
def test_installed_plugin_keeps_its_name_against_the_variable(site, first):
    toy(site)
    site.module("bare", REGISTER.format(name="toy", module="elsewhere"))
    assert site.run(f"{first}; print(registry.get('toy').backend)", plugins="bare") == "toy_backend:ToyBackend"
    assert "rlctl-toy" in site.records(plugins="bare")["RLCTL_PLUGINS module bare"]["error"]


def test_taken_name_is_refused_and_says_by_whom():
    with pytest.raises(ConfigError, match=rf"'local' is taken \(built-in\); module {__name__} claims it too"):
        registry.register("local", settings="a.b:C")


@pytest.mark.parametrize("reference", ["no_colon", "a.b:", ":C", "a.b:not-a-name"])
def test_malformed_reference_is_refused(reference):
    with pytest.raises(ConfigError, match="is registered with settings="):
        registry.register("malformed", settings=reference)


def test_part_that_is_not_there_is_unavailable():
    with pytest.raises(BackendUnavailable, match="'local' has no client class"):
        registry.get("local").load("client")


def test_unknown_name_in_this_process_is_a_config_error():
    with pytest.raises(BackendNotFound) as caught:
        registry.get("no such backend")
    assert caught.value.exit_code == 2
