"""Which trainer rank computes which rows: groups stay whole, and every rank gets about as many unique tokens.

A group's rows share their prompt, which is computed once; split over two ranks it would be computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlctl.types import TrainRow


def balance(rows: Sequence[TrainRow], *, ranks: int) -> list[list[int]]:
    """Positions of the rows of each rank, in their order: [R] rows -> [ranks] lists, some empty when groups are few.

    The largest group first, to the rank with the fewest tokens (LPT, at most 4/3 of the best possible maximum: Graham
    1969, https://doi.org/10.1137/0117039). A pure function of the rows, so that a resumed run cuts them alike.
    """
    groups: dict[bytes, list[int]] = {}
    for position, row in enumerate(rows):
        groups.setdefault(row.prompt_ids.tobytes(), []).append(position)
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for members in sorted(groups.values(), key=lambda members: (-unique_tokens(rows, members), members[0])):
        rank = loads.index(min(loads))
        shares[rank] += members
        loads[rank] += unique_tokens(rows, members)
    return [sorted(share) for share in shares]


def unique_tokens(rows: Sequence[TrainRow], members: Sequence[int]) -> int:
    """Tokens of the rows of one group: its prompt once, and every completion."""
    return len(rows[members[0]].prompt_ids) + sum(len(rows[i].completion_ids) for i in members)
