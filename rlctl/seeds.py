"""Every random number of a run as a pure function of what it is for.

A sample's draws depend on (run seed, step, problem, sample, position) and on nothing else: not on
the batch, the number of workers, or what was drawn before. Uniform numbers come from SplitMix64 used
as a counter-based generator (Steele, Lea, Flood 2014, https://doi.org/10.1145/2660193.2660195).
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def prompt_seed(run_seed: int, step: int | str, problem_id: str) -> int:
    """64-bit seed of one problem at one step."""
    return _hashed(f"prompt/{run_seed}/{step}/{problem_id}")


def sample_seed(seed: int, sample: int) -> int:
    """64-bit seed of the sample-th completion of a prompt with that seed."""
    return _hashed(f"sample/{seed}/{sample}")


def turn_seed(seed: int, *, sample: int, turn: int) -> int:
    """64-bit seed of a turn of the sample-th rollout of a prompt with that seed; siblings draw their first turn
    together, by `sample_seed`."""
    return _hashed(f"turn/{seed}/{sample}/{turn}")


def update_seed(run_seed: int, step: int, update: int) -> int:
    """64-bit seed of what the update-th update of a step draws."""
    return _hashed(f"update/{run_seed}/{step}/{update}")


def fraction(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return (_hashed(text) >> 11) * 2.0**-53


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def uniforms(seeds: npt.NDArray[np.uint64], position: int | npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The position-th uniform number in [0, 1) of each seed: [B] (and [B] positions) -> [B], 53 random bits each."""
    with np.errstate(over="ignore"):
        state = seeds + np.asarray(position + 1, dtype=np.uint64) * _GAMMA
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
        state = state ^ (state >> np.uint64(31))
    numbers: npt.NDArray[np.float64] = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers
