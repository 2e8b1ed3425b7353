"""Which tokens are chosen, over a whole minibatch."""

from __future__ import annotations

import numpy as np

from rlctl.algorithms.covariance import SelectionSpec, selected
from rlctl.types import TrainRow
from tests import defaults

OLD = [np.array([-1.0, -5.0], np.float32), np.array([-1.0, -5.0], np.float32)]


def rows() -> list[TrainRow]:
    """Two completions with advantages 1 and -1."""
    ids = np.zeros(2, np.int32)
    return [TrainRow(ids, ids, a, old, old) for a, old in zip((1.0, -1.0), OLD, strict=True)]


def choose(spec: SelectionSpec, *, current: list[np.ndarray] = OLD, seed: int = 0) -> list[bool]:
    draw = np.random.default_rng(seed)
    return selected(rows(), current, loss=defaults.loss(), spec=spec, draw=draw).tolist()


def test_kl_cov_takes_the_highest_covariances() -> None:
    # Means 0 and -3: covariances 1 * 2, 1 * -2, -1 * 2, -1 * -2.
    assert choose(SelectionSpec("kl_cov", 0.5)) == [True, False, False, True]
    assert choose(SelectionSpec("kl_cov", 0.0001)) == [True, False, False, False]


def test_clip_cov_draws_from_covariances_between_its_bounds() -> None:
    assert choose(SelectionSpec("clip_cov", 1.0, 1.0, 5.0)) == [True, False, False, True]
    assert choose(SelectionSpec("clip_cov", 1.0, 2.5, 5.0)) == [False] * 4
    one = [choose(SelectionSpec("clip_cov", 0.25, 1.0, 5.0), seed=seed) for seed in range(20)]
    assert {tuple(chosen) for chosen in one} == {(True, False, False, False), (False, False, False, True)}


def test_clip_cov_leaves_alone_what_the_clip_cuts_already() -> None:
    # The first token's ratio is e^0.5 with a positive advantage: it has no gradient.
    current = [np.array([-0.5, -5.0], np.float32), OLD[1]]
    assert choose(SelectionSpec("clip_cov", 1.0, 1.0, 5.0), current=current) == [False, False, False, True]
