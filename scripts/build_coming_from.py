"""Write the tables of docs/coming-from.md out of rlctl/peers/maps and rlctl/peers/defaults.

python scripts/build_coming_from.py            # in place; tests/peers/test_coming_from.py sees that it was done
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlctl.peers.entries import shown
from rlctl.peers.findings import Effect
from rlctl.peers.tables import NO_DEFAULT, PEERS, Peer, load

PAGE = Path(__file__).resolve().parents[1] / "docs" / "coming-from.md"


def page(text: str) -> str:
    """The page with its tables made anew: all between `<!-- table: NAME -->` and `<!-- end -->`."""
    for name in PEERS:
        table = "\n".join(rows(load(name)))
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def rows(peer: Peer) -> Iterator[str]:
    versions = " / ".join(table.version for table in peer.tables)
    yield f"| {peer.title} | default in {versions} | rlctl |"
    yield "|---|---|---|"
    for key, word in peer.ruled.items():
        yield row(peer, key, word)
    for key, mapped in peer.mapped.items():
        yield row(peer, key, f"{mapped.setting}{'; ' + mapped.note if mapped.note else ''}")
    for entry in peer.without:
        for key in entry.keys:
            if entry.effect is Effect.RESULT and known(peer, key):
                yield row(peer, key, f"none: {entry.why}")


def known(peer: Peer, key: str) -> bool:
    return any(key in table.defaults for table in peer.tables)


def row(peer: Peer, key: str, word: str) -> str:
    defaults = [default(table.defaults[key]) if key in table.defaults else "-" for table in peer.tables]
    same = defaults[:1] if len(set(defaults)) == 1 else defaults
    return f"| `{key}` | {' / '.join(same)} | {escaped(word)} |"


def default(value: Any) -> str:
    return "-" if value == NO_DEFAULT else escaped(shown(value, limit=40))


def escaped(text: str) -> str:
    """Plain text in a cell of Markdown; names of settings stand as they are."""
    for special in ("|", "*", "<"):
        text = text.replace(special, f"\\{special}")
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
