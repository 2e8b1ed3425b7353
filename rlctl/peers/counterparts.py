"""What a setting of TRL, verl or OpenRLHF is here, for somebody who types it by its name there."""

from __future__ import annotations

from rlctl.peers.tables import PEERS, Peer, load


def counterpart(name: str) -> str:
    """A sentence on the setting of that very name, whichever peer has it; empty where none does."""
    for peer in map(load, PEERS):
        key = peer.spelled(name)
        if words := _here(peer, key):
            return f"{peer.title}'s {key} {words.rstrip('.')}."
    return ""


def _here(peer: Peer, key: str) -> str:
    """From the peer's map, so that a person is told what `config import` does."""
    if key in peer.mapped:
        return f"is {peer.mapped[key].setting}"
    if key in peer.ruled:
        ours, _, why = peer.ruled[key].partition("none: ")
        return f"has no counterpart: {why}" if why and not ours else f"is {peer.ruled[key].removesuffix(', see above')}"
    # Named in full only: patterns as `lora_*` would take slips of the pen for settings of a peer.
    return next((f"has no counterpart: {entry.why}" for entry in peer.without if key in entry.keys), "")
