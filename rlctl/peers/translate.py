"""A peer's config as settings of rlctl: which peer, which version, what each setting becomes, and whether it loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, get_args

from rlctl.peers import detect, mapping, openrlhf, trl, verl
from rlctl.peers.book import Book
from rlctl.peers.entries import Entry, Source, scalar, shown
from rlctl.peers.findings import Effect, Finding, Group, Translation
from rlctl.peers.tables import Peer

RULES: dict[str, Callable[[Book], None]] = {"trl": trl.rules, "verl": verl.rules, "openrlhf": openrlhf.rules}


def translate(
    source: Source,
    *,
    peer: str | None = None,
    version: str | None = None,
    devices: int | None = None,
    whole: bool = False,
    rewards: Sequence[str] = (),
) -> Translation:
    """The translation of a config; `devices` is what --num-devices says, which the file may say too.

    With `whole`, settings that are rlctl's defaults are kept; `rewards` are rlctl's, in place of the peer's. Raises
    ConfigError when the config is of another tool.
    """
    found = detect.peer_of(source, peer)
    given = _spelled(source, found)
    table = detect.version_of(found, list(given), version)
    launched = source.launched_devices() or _launched_by(given)
    book = Book(found, table, given, devices if devices is not None else launched, tuple(rewards))
    for fault in source.faults:
        book.remark(Group.INVALID, "(script)", fault, effect=Effect.RESULT)
    mapping.removed(book)
    RULES[found.name](book)
    mapping.apply(book)
    everything = _checked([_typed(finding) for finding in book.findings])
    findings = _dropped_defaults(everything)
    settings = {name: value for finding in everything for name, value in finding.settings.items()}
    if not whole:
        settings = {name: value for name, value in settings.items() if not _is_default(name, value)}
    return Translation(
        peer=found.title,
        version=table.version,
        path=source.path,
        form=source.form,
        settings=settings,
        comments={name: _comment(f) for f in everything for name in f.settings if name in settings},
        findings=tuple(sorted(findings, key=lambda finding: list(Group).index(finding.group))),
        notes=(*source.notes, *_other_versions(book)),
    )


def _launched_by(given: Mapping[str, Entry]) -> int | None:
    """`trl grpo` takes accelerate's options among its own."""
    count = given["num_processes"].value if "num_processes" in given else None
    return count if isinstance(count, int) and count > 0 else None


def _other_versions(book: Book) -> list[str]:
    """What the defaults of other versions would have been: a config seldom says which one it was written for."""
    notes = []
    counted = {*book.peer.mapped, *book.peer.ruled} - book.given.keys()
    for table in book.peer.tables:
        both = sorted(counted & table.defaults.keys() & book.table.defaults.keys())
        other = [key for key in both if not _mean_the_same(table.defaults[key], book.table.defaults[key])]
        if table is not book.table and other:
            said = ", ".join(f"{key} = {shown(table.defaults[key])}" for key in other)
            notes.append(f"--peer-version {table.version} has other defaults: {said}")
    return notes


def _mean_the_same(one: Any, other: Any) -> bool:
    """Whether two defaults differ in spelling only: null is what a version does unasked, and true was a name later."""
    return one == other or None in (one, other) or [True, "group"] in ([one, other], [other, one])


def _spelled(source: Source, peer: Peer) -> dict[str, Entry]:
    """The file's settings by the names that the maps know; of two spellings of one, the later counts."""
    return {(key := peer.spelled(entry.key)): replace(entry, key=key) for entry in source.entries}


def _dropped_defaults(findings: list[Finding]) -> list[Finding]:
    """Without the peer's defaults that rlctl has too: there is nothing to tell of them."""

    def as_told(finding: Finding) -> Finding | None:
        same = all(_is_default(name, value) for name, value in finding.settings.items())
        if finding.group is not Group.DEFAULT or finding.keys or not same:
            return finding
        return replace(finding, group=Group.MEANING, settings={}) if finding.different else None

    return [told for finding in findings if (told := as_told(finding))]


def _comment(finding: Finding) -> str:
    if finding.group is Group.DEFAULT:
        return finding.text if finding.subject.startswith("(") else f"{finding.subject}, the peer's default"
    value = "" if finding.text else f" = {shown(finding.value, limit=40)}"
    return finding.subject + value


@cache
def _defaults() -> dict[str, Any]:
    from rlctl.settings import Settings

    return Settings().model_dump(mode="json")


def _is_default(name: str, value: Any) -> bool:
    tree: Any = _defaults()
    for key in name.split("."):
        tree = tree[key]
    if isinstance(tree, float | int) and not isinstance(tree, bool) and isinstance(value, float | int):
        return float(tree) == float(value)
    return bool(tree == (list(value) if isinstance(value, tuple) else value))


def _typed(finding: Finding) -> Finding:
    """Numbers that stand in quotes as numbers; text that parsers read differently, as `010`, is refused."""
    settings = {name: _number_of(name, value) for name, value in finding.settings.items()}
    unclear = [name for name, value in settings.items() if isinstance(value, str) and _wants_a_number(name)]
    if unclear:
        return _without(
            finding, f"{unclear[0]} wants a number, and {shown(settings[unclear[0]])!r} is none for certain"
        )
    return replace(finding, settings=settings)


def _number_of(name: str, value: Any) -> Any:
    return scalar(value.strip()) if isinstance(value, str) and _wants_a_number(name) else value


def _wants_a_number(name: str) -> bool:
    from rlctl.settings_tree import field_type

    kinds = _kinds(field_type(tuple(name.split("."))))
    return bool(kinds & {int, float}) and str not in kinds


def _kinds(annotation: Any) -> set[Any]:
    inner = get_args(annotation)
    return set().union(*(_kinds(part) for part in inner)) if inner else {annotation}


def _checked(findings: list[Finding]) -> list[Finding]:
    """The findings, those whose settings rlctl refuses as refused: what is left loads."""
    for _ in range(len(findings) + 1):
        complaint = _refused(findings)
        if complaint is None:
            return findings
        name, message = complaint
        findings = [_without(finding, message) if name in finding.settings else finding for finding in findings]
    return findings


def _without(finding: Finding, message: str) -> Finding:
    text = f"rlctl refuses it: {message}"
    harmless = all(name.startswith(mapping.HARMLESS) for name in finding.settings)
    effect = Effect.NONE if harmless else Effect.RESULT
    return replace(finding, group=Group.INVALID, text=text, settings={}, effect=effect)


def _refused(findings: list[Finding]) -> tuple[str, str] | None:
    """One setting that rlctl does not take, with its complaint; None when all are taken together."""
    from pydantic import ValidationError

    from rlctl.settings import Settings

    settings = {name: value for finding in findings for name, value in finding.settings.items()}
    try:
        Settings(**nested(settings))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        message = str(detail["msg"]).removeprefix("Value error, ")
        where = ".".join(str(part) for part in detail["loc"] if not isinstance(part, int))
        inside = [name for name in settings if where == name or where.startswith(f"{name}.")]
        named = [name for name in settings if name in message]
        below = [name for name in settings if name.startswith(where)]
        return (inside or named or below or list(settings))[0], message
    return None


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as tables within tables."""
    tree: dict[str, Any] = {}
    for name, value in settings.items():
        *above, last = name.split(".")
        table = tree
        for key in above:
            table = table.setdefault(key, {})
        table[last] = value
    return tree
