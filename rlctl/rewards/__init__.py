"""Rewards: what a completion is worth.

`base.py` is the contract and how names become functions, `scoring.py` calls them over a batch, `math.py` is the
built-in `gsm8k`, `numbers.py` reads its numbers.
"""

from __future__ import annotations

from rlctl.rewards.base import Reward, RewardResult, RewardSet, load_rewards
from rlctl.rewards.scoring import Scored, score

__all__ = ["Reward", "RewardResult", "RewardSet", "Scored", "load_rewards", "score"]
