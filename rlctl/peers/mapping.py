"""What the map says of each setting that no rule has taken up: one of ours, nothing at all, or not a setting."""

from __future__ import annotations

import difflib
from typing import Any

from rlctl.peers.book import FALSE, TRUE, Book, as_number
from rlctl.peers.entries import Entry, Unresolved, shown
from rlctl.peers.findings import Effect, Group
from rlctl.peers.tables import NO_DEFAULT, Mapped, Without

_LOST = object()
HARMLESS = (
    "run.",
    "local.",
    "eval.",
    "trainer.save_",
    "trainer.keep_",
    "trainer.eval_",
    "trainer.max_tokens_per_device",
)
"""Settings that change no weight: losing one does not change the result."""


def apply(book: Book) -> None:
    """Account for every setting of the file that is left, and for the defaults that the peer used."""
    for key, mapped in book.peer.mapped.items():
        if key not in book.done and (key in book.given or _counts(book, key, mapped)):
            _take(book, key, mapped)
    for entry in book.peer.without:
        _leave(book, entry)
    for left in [entry for key, entry in book.given.items() if key not in book.done]:
        _unmapped(book, left)
    _reward(book)
    taken = {name: value for finding in book.findings for name, value in finding.settings.items()}
    for implied in book.peer.implied:
        if implied["setting"] not in taken and not taken.get(implied.get("unless", "")):
            settings = {implied["setting"]: implied["value"]}
            book.put(Group.DEFAULT, [f"({book.peer.title})"], implied["why"], settings)
    for text in book.peer.always:
        book.remark(Group.MEANING, f"({book.peer.title})", text)


def removed(book: Book) -> None:
    """`~a.b` takes a setting out of hydra's config; what the peer then does is not in any table."""
    gone = [key for key, entry in book.given.items() if entry.spelled.startswith("~")]
    for key in gone:
        book.missing([key], "taken out of the peer's config by ~; rlctl keeps its own default")


def _counts(book: Book, key: str, mapped: Mapped) -> bool:
    return mapped.default and key in book.table.defaults and book.table.defaults[key] != NO_DEFAULT


def _take(book: Book, key: str, mapped: Mapped) -> None:
    if book.waits([key], effect=Effect.NONE if mapped.setting.startswith(HARMLESS) else Effect.RESULT):
        return
    value = _converted(mapped, book.value(key))
    if value is _LOST:
        book.missing([key], mapped.lost or f"{mapped.setting} has no such value")
    elif mapped.note and key in book.given:
        book.meaning([key], mapped.note, {mapped.setting: value})
    else:
        book.exact([key], mapped.note, {mapped.setting: value})


def _converted(mapped: Mapped, value: Any) -> Any:
    if mapped.values is None:
        return value
    wanted = shown(value, limit=200).lower()
    for theirs, ours in mapped.values.items():
        if theirs.lower() == wanted:
            return None if ours == "null" else ours
    return mapped.values.get("*", _LOST) if mapped.values.get("*") != "=" else value


def _reward(book: Book) -> None:
    """No config holds a reward: rlctl's own default would be another one, so it is always told of."""
    if book.rewards:
        settings = {"reward.functions": list(book.rewards)}
        book.put(Group.DEFAULT, ["(--reward)"], "named on the command line", settings)
    elif not any(entry.reward and entry.covers(key) for entry in book.peer.without for key in book.given):
        text = f"{book.peer.reward}; name rlctl's with --reward or in reward.functions (`rlctl reward describe NAME`)"
        book.remark(Group.MISSING, "(reward)", text, effect=Effect.RESULT)


def _leave(book: Book, entry: Without) -> None:
    for key in [key for key in book.given if key not in book.done and entry.covers(key)]:
        value = book.value(key)
        if entry.reward and book.rewards:
            book.missing([key], f"--reward {', '.join(book.rewards)} takes its place", Effect.NONE)
        elif isinstance(value, Unresolved) and entry.effect is Effect.RESULT:
            book.waits([key])
        elif entry.neutral and _is_one_of(value, entry.neutral):
            book.exact([key], "nothing is lost at this value")
        else:
            book.missing([key], entry.why, entry.effect)
    for key in entry.keys:
        default = book.table.defaults.get(key, NO_DEFAULT)
        matters = entry.effect in (Effect.RESULT, Effect.MEASURE) and entry.neutral
        if key in book.done or not matters or _is_one_of(default, (NO_DEFAULT, *entry.neutral)) or "${" in str(default):
            continue
        book.missing([key], f"the peer's default is {shown(default)}: {entry.why}", entry.effect)


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(_same(value, one) for one in neutral)


def _same(value: Any, other: Any) -> bool:
    if isinstance(other, bool):
        return str(value).lower() in (TRUE if other else FALSE)
    number = as_number(other)
    if number is not None:
        return as_number(value) == number
    return shown(value, limit=200).lower() == shown(other, limit=200).lower()


def _unmapped(book: Book, entry: Entry) -> None:
    peer, key = book.peer, entry.key
    if key.startswith("$"):
        text = "arguments that are put in when the script is run; add them to the file"
        book.put(Group.UNRESOLVED, [key], text, effect=Effect.RESULT)
        return
    if peer.knows(key):
        text = f"a setting of {peer.title} that this import knows nothing of; see {peer.title}'s documentation"
        book.missing([key], text)
        return
    near = difflib.get_close_matches(key, peer.names(), n=1, cutoff=0.8) or _same_leaf(key, peer.names())
    hint = f". Did you mean {near[0]}?" if near else ""
    added = "; added by hand (+), which hydra lets through and verl does not read" if entry.added else ""
    versions = " or ".join(table.version for table in peer.tables)
    text = f"no setting of {peer.title} {versions}; {peer.unknown}{added}{hint}"
    book.put(Group.UNKNOWN, [key], text, effect=Effect.RESULT)


def _same_leaf(key: str, names: list[str]) -> list[str]:
    """A setting of that last name elsewhere in the tree: the usual slip with hydra."""
    leaf = key.rsplit(".", 1)[-1]
    return [name for name in names if "." in key and name.rsplit(".", 1)[-1] == leaf][:1]
