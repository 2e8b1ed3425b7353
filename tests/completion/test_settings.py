"""Settings as completion reads them from source, against the classes themselves."""

from __future__ import annotations

from types import NoneType
from typing import Any, Literal, get_args, get_origin

from rlctl import settings_tree
from rlctl.backends import registry
from rlctl.completion.settings import Setting, backend_tree, tree


def read() -> dict[str, Setting]:
    outside = [name for name in registry.names() if name != "local"]
    return tree() | {
        dotted: one for name in outside for dotted, one in backend_tree(name, registry.get(name).settings).items()
    }


def choices(annotation: Any) -> tuple[str, ...]:
    if annotation is bool:
        return ("true", "false")
    if annotation is NoneType:
        return ("null",)
    if get_origin(annotation) is Literal:
        return tuple(str(value) for value in get_args(annotation))
    if settings_tree._alternatives(annotation) != (annotation,):
        return tuple(one for part in get_args(annotation) for one in choices(part))
    return ()


def test_every_setting_is_read_with_its_choices() -> None:
    found = read()
    assert set(found) == {".".join(keys) for keys in settings_tree.leaves()}
    assert {dotted: one.choices for dotted, one in found.items()} == {
        dotted: choices(settings_tree.field_type(tuple(dotted.split(".")))) for dotted in found
    }


def test_its_meaning_is_the_first_sentence_under_the_field() -> None:
    found = read()
    assert found["trainer.lr"].meaning == "Peak learning rate"
    assert found["remote_backend.ray.colocate"].meaning.startswith("Whether sampler and trainer share")
    assert all(one.meaning for one in found.values())


def test_a_module_that_cannot_be_read_has_no_settings(tmp_path: object) -> None:
    assert backend_tree("x", "no_such_package_at_all.settings:X") == {}
    assert backend_tree("x", "rlctl.backends.ray.settings:NoSuchClass") == {}
