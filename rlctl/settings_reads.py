"""Which settings a run has read: a copy of the settings that keeps the name of every one that is asked for.

Reading is an attribute access in this process. Validating, dumping, comparing and copying look at all settings without
reading one; a table that is pickled goes to another process, where it is plain again and what is read is not seen.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from rlctl.layers import shown
from rlctl.settings_tree import is_block, is_secret

if TYPE_CHECKING:  # pydantic is only the type here
    from pydantic import BaseModel

    from rlctl.settings import Settings

BlockT = TypeVar("BlockT", bound="BaseModel")

PLAIN = "_watched_from"
"""Where a watching class keeps the one it watches for."""


@dataclass
class Reads:
    """What has been read so far, by dotted name, and which tables went to another process."""

    names: set[str] = field(default_factory=set)
    sent: set[str] = field(default_factory=set)

    def watch(self, settings: Settings) -> Settings:
        """A copy of the settings whose every read is kept here; as frozen, as equal, and to be copied as before."""
        return self.watched(settings, "")

    def watched(self, block: BlockT, name: str) -> BlockT:
        """The same of one table, whose settings are called `name` and their own."""
        watched = copy.copy(block)
        for key, value in vars(watched).items():
            vars(watched)[key] = self._value(value, f"{name}.{key}" if name else key)
        # The frozen block refuses what it takes for a setting.
        object.__setattr__(watched, "__class__", _watching(type(block), name, self))
        return watched

    def _value(self, value: Any, name: str) -> Any:
        if is_block(type(value)):
            return self.watched(value, name)
        if isinstance(value, dict):
            return {key: self._value(item, f"{name}.{key}") for key, item in value.items()}
        if isinstance(value, list | tuple) and any(is_block(type(item)) for item in value):
            return type(value)(self._value(item, f"{name}[{place}]") for place, item in enumerate(value, start=1))
        return value


def _watching(plain: type[BlockT], name: str, reads: Reads) -> type[BlockT]:
    """A class that is `plain`, but for telling `reads` of every field that is asked for."""
    fields = frozenset(plain.model_fields)
    prefix = f"{name}." if name else ""

    def read(self: BlockT, attribute: str) -> Any:
        if attribute in fields:
            reads.names.add(prefix + attribute)
        return plain.__getattribute__(self, attribute)

    def reduce(self: BlockT, protocol: Any) -> Any:
        reads.sent.add(name)
        # What arrives is a copy of the plain block, which pickle takes apart itself.
        return copy.copy, (_plain(self, plain),)

    def equals(self: BlockT, other: object) -> bool:
        mine, theirs = _plain(self, plain), _plain(other, plain) if isinstance(other, plain) else other
        return bool(mine == theirs)

    def dump(self: BlockT, *arguments: Any, **options: Any) -> dict[str, Any]:
        # Who asks for one table as a whole reads it; the whole tree is dumped to be shown or kept.
        reads.names.update(prefix + key for key in fields if name)
        return plain.model_dump(self, *arguments, **options)

    def tables(self: Any) -> list[Any]:
        made = plain.tables(self)  # type: ignore[attr-defined]  # asked only of the block that has it
        return [table if PLAIN in vars(type(table)) else reads.watched(table, name) for table in made]

    namespace = {
        "__getattribute__": read, "__reduce_ex__": reduce, "__eq__": equals, "__hash__": plain.__hash__,
        "model_dump": dump, PLAIN: plain, **({"tables": tables} if hasattr(plain, "tables") else {}),
    }  # fmt: skip
    # Not through pydantic's metaclass, which would build a validator that nobody calls.
    made: Any = type.__new__(type(plain), plain.__name__, (plain,), {"__module__": plain.__module__, **namespace})
    made.__qualname__ = plain.__qualname__
    watching: type[BlockT] = made
    return watching


def _plain(block: Any, plain: type[BlockT]) -> BlockT:
    """The block as it was before it was watched, and the blocks in it."""
    unwatched: BlockT = copy.copy(block)
    object.__setattr__(unwatched, "__class__", plain)
    for key, value in vars(unwatched).items():
        vars(unwatched)[key] = _plain_value(value)
    return unwatched


def _plain_value(value: Any) -> Any:
    watched_from = vars(type(value)).get(PLAIN)
    if watched_from is not None:
        return _plain(value, watched_from)
    if isinstance(value, dict):
        return {key: _plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and any(PLAIN in vars(type(item)) for item in value):
        return type(value)(_plain_value(item) for item in value)
    return value


@dataclass(frozen=True, slots=True)
class Unread:
    """A setting that is not its default, and that nothing read; `why` where that is known, and then no fault."""

    name: str
    value: str
    origin: str
    why: str = ""

    def line(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"{self.name} = {self.value} (from {self.origin}) was not read in this run{why}"


def unread(settings: Settings, reads: Reads, origins: Mapping[str, str]) -> list[Unread]:
    """The settings that are not their default and that the run which `reads` watched did not read."""
    return [
        Unread(
            name,
            "***" if is_secret(annotation) else shown(value),
            origins.get(name) or origins.get(name.split("[")[0]) or "default",
            _why(name, settings, reads),
        )
        for name, value, annotation in _changed(settings, "")
        if not _was_read(name, reads)
    ]


def _was_read(name: str, reads: Reads) -> bool:
    """A column that `[data]` says for all of several sources is read through any of them."""
    key = name.removeprefix("data.")
    of_sources = {f"data.{read.partition('].')[2]}" for read in reads.names if read.startswith("data.sources[")}
    return name in reads.names or (name != key and name in of_sources)


def worth_telling(found: Sequence[Unread]) -> list[Unread]:
    """All but what a preset holds for a `train`, which a smoke run has no use for."""
    return [setting for setting in found if not (setting.why and setting.origin.startswith(("preset", "default")))]


def _changed(block: BaseModel, name: str) -> Iterator[tuple[str, Any, Any]]:
    """(name, value, annotation) of each setting below the block that is not its default."""
    for key, info in type(block).model_fields.items():
        value, dotted = vars(block)[key], f"{name}.{key}" if name else key
        tables = _tables(value, dotted)
        for table_name, table in tables:
            yield from _changed(table, table_name)
        if not tables and value != info.get_default(call_default_factory=True):
            yield dotted, value, info.annotation


def _tables(value: Any, name: str) -> list[tuple[str, Any]]:
    if is_block(type(value)):
        return [(name, value)]
    if isinstance(value, dict):
        return [(f"{name}.{key}", item) for key, item in value.items() if is_block(type(item))]
    if isinstance(value, list | tuple):
        return [(f"{name}[{place}]", item) for place, item in enumerate(value, start=1) if is_block(type(item))]
    return []


SMOKE_HAS_NO_USE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("a smoke run evaluates nothing", ("eval.*", "trainer.eval_freq")),
    (
        "a smoke run writes no files",
        ("run.dir", "run.name", "run.resume", "run.samples_per_step", "trainer.save_freq", "trainer.save_in_background",
         "trainer.keep_*", "trainer.on_save_error", "trainer.max_rollbacks"),
    ),
    ("trainer.steps decides, which a smoke run sets", ("trainer.epochs",)),
)  # fmt: skip
SWITCHES: tuple[tuple[str, str, Callable[[Settings], bool]], ...] = (
    ("model.lora.*", "model.lora.rank is 0", lambda s: s.model.lora.rank == 0),
    ("data.curriculum.*", "data.curriculum.enabled is false", lambda s: not s.data.curriculum.enabled),
    ("algorithm.max_refills", "algorithm.filter_groups is false", lambda s: not s.algorithm.filter_groups),
    ("algorithm.rollout_is_*", "algorithm.rollout_is is off", lambda s: s.algorithm.rollout_is == "off"),
    ("algorithm.clip_cov_*", "algorithm.policy_loss is another", lambda s: s.algorithm.policy_loss != "clip_cov"),
    ("algorithm.kl_cov_ratio", "algorithm.policy_loss is another", lambda s: s.algorithm.policy_loss != "kl_cov"),
)
"""Settings that wait for another one to be switched on."""


def _why(name: str, settings: Settings, reads: Reads) -> str:
    """Why the run had no use for the setting; empty where nothing is known that would excuse it."""
    for why, patterns in SMOKE_HAS_NO_USE:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            return why
    for pattern, why, is_off in SWITCHES:
        if fnmatch.fnmatchcase(name, pattern) and is_off(settings):
            return why
    backend = settings.backend
    if any(name.startswith(f"{table}." if table else "") for table in reads.sent):
        return "its table went to another process, where reading is not seen"
    own = "local." if backend == "local" else f"remote_backend.{backend}."
    if name.startswith(("local.", "remote_backend.")) and not name.startswith(own):
        return f"the run is on backend {backend}"
    first, _, rest = name.partition(".")
    if first == "reward" and "." in rest and rest.split(".")[0] not in settings.reward.functions:
        return f"reward.functions does not name {rest.split('.')[0]}"
    return ""
