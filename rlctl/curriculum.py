"""Which problems rest: those whose latest samples all had the same reward, so that they teach nothing for now.

For a reward of right or wrong these are the problems solved by all of their samples or by none. A resting problem is
not lost: in each pass over the data a fixed share of them has its turn, each at the latest after 1 / share passes,
and what it scores then decides anew. The state is plain data, which a checkpoint keeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlctl.errors import CheckpointError
from rlctl.seeds import fraction
from rlctl.types import Problem, Rollout

Kind = Literal["all", "none", "equal"]
"""Why a problem rests: solved by all samples, by none, or neither and yet all rewards are equal."""


@dataclass
class Curriculum:
    """What the latest visits to each problem taught. `visits` of them must have taught nothing for it to rest."""

    revisit_share: float
    visits: int
    seed: int
    history: dict[str, list[str]] = field(default_factory=dict)
    """Problem id -> its latest visits, oldest first: "" for one that taught something, else why not."""
    passed_over: int = 0
    revisited: int = 0

    def rests(self, problem_id: str, *, epoch: int) -> bool:
        """Whether the problem is passed over in this pass; counts what it decides."""
        seen = self.history.get(problem_id, [])
        if len(seen) < self.visits or not all(seen):
            return False
        if self._has_its_turn(problem_id, epoch):
            self.revisited += 1
            return False
        self.passed_over += 1
        return True

    def recalled(self, problems: Sequence[Problem]) -> Sequence[Problem]:
        """Count problems that `rests` had passed over and that are taken after all, since there are no others."""
        self.passed_over -= len(problems)
        self.revisited += len(problems)
        return problems

    def _has_its_turn(self, problem_id: str, epoch: int) -> bool:
        # floor(share * epoch + phase) steps up in exactly that share of the epochs, evenly spaced; the phase, each
        # problem's own, spreads the resting ones over them.
        phase = fraction(f"curriculum/{self.seed}/{problem_id}")
        return math.floor(self.revisit_share * (epoch + 1) + phase) > math.floor(self.revisit_share * epoch + phase)

    def record(self, groups: Sequence[Sequence[Rollout]], *, task: str) -> None:
        """Remember what each group of samples taught; a group whose rewards failed says nothing."""
        for group in groups:
            known = [rollout for rollout in group if rollout.reward is not None]
            if len(known) < 2:
                continue
            taught = len({rollout.reward for rollout in known}) > 1
            self.history.setdefault(group[0].problem.id, []).append("" if taught else _kind(known, task))
            del self.history[group[0].problem.id][: -self.visits]

    def metrics(self) -> dict[str, int]:
        """How many problems rest and why, and what was passed over and revisited since the last call."""
        resting = [seen[-1] for seen in self.history.values() if len(seen) >= self.visits and all(seen)]
        counts = {
            "data/curriculum/seen": len(self.history),
            **{f"data/curriculum/resting_{kind}": resting.count(kind) for kind in ("all", "none", "equal")},
            "data/curriculum/passed_over": self.passed_over,
            "data/curriculum/revisited": self.revisited,
        }
        self.passed_over = self.revisited = 0
        return counts

    def state_dict(self) -> dict[str, Any]:
        return {"history": {name: list(seen) for name, seen in self.history.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises CheckpointError when it is not what `state_dict` gives."""
        history = state.get("history") if isinstance(state, Mapping) else None
        if not isinstance(history, Mapping) or not all(_is_history(seen) for seen in history.values()):
            raise CheckpointError("the curriculum in the checkpoint is not one that rlctl wrote.")
        self.history = {str(name): list(seen)[-self.visits :] for name, seen in history.items()}


def _is_history(seen: object) -> bool:
    return isinstance(seen, list) and all(visit in ("", "all", "none", "equal") for visit in seen)


def _kind(group: Sequence[Rollout], task: str) -> Kind:
    solved = sum(rollout.scores.get(task, 0.0) >= 1.0 for rollout in group)
    return "all" if solved == len(group) else "none" if solved == 0 else "equal"
