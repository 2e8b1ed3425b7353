"""Each estimator against hand-worked numbers, and against a second implementation over padded matrices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.algorithms import estimators
from rlctl.algorithms.advantages import Group

Matrix = npt.NDArray[np.float64]


def advantages(name: str, groups: list[Group], *, scale: bool = True) -> list[list[list[float]]]:
    """[P][n][C] advantages of every token."""
    found = estimators.registry.load(name)(groups, scale=scale)
    return [
        [np.broadcast_to(value, length).tolist() for value, length in zip(values, group.lengths, strict=True)]
        for values, group in zip(found, groups, strict=True)
    ]


def first_tokens(name: str, *rewards: list[float], scale: bool = True, **more: object) -> list[list[float]]:
    """[P][n] advantages of the first token, of groups whose completions have 2 tokens each."""
    groups = [Group(r, [2] * len(r), **more) for r in rewards]  # type: ignore[arg-type]
    return [[tokens[0] for tokens in group] for group in advantages(name, groups, scale=scale)]


def test_grpo_by_hand() -> None:
    # Field fault 001. Group 1: mean 1/2, std sqrt(1/3); group 2: mean 1/4, std 1/2.
    found = first_tokens("grpo", [1, 1, 0, 0], [1, 0, 0, 0])
    np.testing.assert_allclose(found, [[0.866025, 0.866025, -0.866025, -0.866025], [1.5, -0.5, -0.5, -0.5]], rtol=1e-5)


def test_dr_grpo_only_centres() -> None:
    assert first_tokens("grpo", [1, 0, 0, 0], scale=False) == [[0.75, -0.25, -0.25, -0.25]]


def test_rloo_compares_with_the_others() -> None:
    # 1 - mean(0, 0, 0), 0 - mean(1, 0, 0).
    np.testing.assert_allclose(first_tokens("rloo", [1, 0, 0, 0]), [[1, -1 / 3, -1 / 3, -1 / 3]])


def test_opo_weighs_the_baseline_by_length() -> None:
    # (3 * 1 + 1 * 0) / 4 = 0.75.
    found = advantages("opo", [Group([1.0, 0.0], [3, 1])])
    assert [tokens[0] for tokens in found[0]] == [0.25, -0.75]


def test_gpg_makes_up_for_groups_without_gradient() -> None:
    # B = 3 groups, M = 1 flat: a factor of 3/2 on the centred rewards.
    found = first_tokens("gpg", [1, 0], [1, 1], [0, 1])
    assert found == [[0.75, -0.75], [0.0, 0.0], [-0.75, 0.75]]


def test_grpo_passk_rewards_the_lead_of_the_best() -> None:
    # 3 - 1 over std(3, 1, 1, 1) = 1.
    np.testing.assert_allclose(first_tokens("grpo_passk", [1, 3, 1, 1]), [[0, 2, 0, 0]], rtol=1e-5)
    assert first_tokens("grpo_passk", [2, 2, 0], scale=False) == [[0.0, 0.0, 0.0]]


def test_remax_compares_with_the_likeliest_completion() -> None:
    assert first_tokens("remax", [1, 1, 0], baseline=0.25) == [[0.75, 0.75, -0.25]]


def test_reinforce_plus_plus_whitens_over_the_tokens_of_the_batch() -> None:
    # Tokens 1, 1, 1, 0: mean 3/4, variance 1/4 with n - 1, so 1/2 and -3/2.
    found = advantages("reinforce_plus_plus", [Group([1.0], [3]), Group([0.0], [1])])
    np.testing.assert_allclose(found[0][0] + found[1][0], [0.5, 0.5, 0.5, -1.5], rtol=1e-6)


def test_reinforce_plus_plus_baseline_centres_first() -> None:
    # Centred: 1/2, -1/2, 0, 0, a token each; variance 1/6.
    groups = [Group([1.0, 0.0], [1, 1]), Group([1.0, 1.0], [1, 1])]
    found = [t for group in advantages("reinforce_plus_plus_baseline", groups) for t in group]
    np.testing.assert_allclose(np.ravel(found), np.array([0.5, -0.5, 0, 0]) * np.sqrt(6), rtol=1e-6)


def test_gdpo_keeps_rewards_of_different_size_apart() -> None:
    # Summed, (1, 0.1) and (1, 0) are almost alike; normalised by themselves, each reward counts by its weight.
    parts = [[(1.0, 1.0), (1.0, 0.1)], [(1.0, 1.0), (1.0, 0.0)], [(1.0, 0.0), (1.0, 0.1)], [(1.0, 0.0), (1.0, 0.0)]]
    found = advantages("gdpo", [Group([1.1, 1.0, 0.1, 0.0], [1] * 4, parts)])
    # Each reward normalises to +-sqrt(3)/2; the sums sqrt(3), 0, 0, -sqrt(3) have std sqrt(2).
    np.testing.assert_allclose(np.ravel(found), [np.sqrt(1.5), 0, 0, -np.sqrt(1.5)], atol=1e-4)


def test_kl_is_taken_off_the_tokens_from_each_on_where_returns_count() -> None:
    group = Group([1.0, 0.0], [2, 2], baseline=0.5, penalties=[np.array([0.1, 0.2]), np.array([0.0, 0.4])])
    # Returns: 1 - 0.3, 1 - 0.2; 0 - 0.4, 0 - 0.4.
    np.testing.assert_allclose(advantages("remax", [group])[0], [[0.2, 0.3], [-0.9, -0.9]])
    # Outcome estimators take all of it off the reward: 0.7 and -0.4.
    np.testing.assert_allclose(advantages("rloo", [group])[0], [[1.1, 1.1], [-1.1, -1.1]])


@pytest.mark.parametrize("name", ["grpo", "rloo", "opo", "gpg", "grpo_passk", "reinforce_plus_plus_baseline", "gdpo"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -7.3])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_equal_rewards_give_exactly_zero(name: str, reward: float, n: int) -> None:
    # Field fault 004, and the mean of three 0.1s, which is not 0.1.
    group = Group([reward] * n, [2] * n, parts=[[(1.0, reward)]] * n)
    assert advantages(name, [group, group]) == [[[0.0, 0.0]] * n] * 2


def test_a_batch_of_equal_rewards_whitens_to_zero() -> None:
    assert first_tokens("reinforce_plus_plus", [0.1, 0.1, 0.1]) == [[0.0, 0.0, 0.0]]


# A second implementation: [B, T] matrices with a mask, and the index of each row's prompt.


def naive(name: str, rewards: Matrix, mask: Matrix, index: npt.NDArray[np.int64], *, scale: bool) -> Matrix:
    score = rewards.sum(1)
    same = index[:, None] == index[None, :]  # [B, B]
    n = same.sum(1)
    mean = same @ score / n
    std = np.sqrt((same * (score[None, :] - mean[:, None]) ** 2).sum(1) / np.maximum(n - 1, 1))
    if name == "grpo":
        return ((score - mean) / (std + 1e-6 if scale else 1))[:, None] * mask
    if name == "rloo":
        return (score - (same @ score - score) / (n - 1))[:, None] * mask
    if name == "opo":
        length = mask.sum(1)
        return (score - same @ (length * score) / (same @ length))[:, None] * mask
    if name == "gpg":
        flat = np.array([np.ptp(score[row]) == 0 for row in same])
        groups, idle = (1 / n).sum(), (flat / n).sum()
        return (groups / (groups - idle) * (score - mean))[:, None] * mask
    if name == "reinforce_plus_plus_baseline":
        return whiten((score - mean)[:, None] * mask, mask)
    assert name == "reinforce_plus_plus"
    returns = np.zeros_like(rewards)
    running = np.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        running = rewards[:, t] + running
        returns[:, t] = running
    return whiten(returns * mask, mask)


def whiten(values: Matrix, mask: Matrix) -> Matrix:
    count = mask.sum()
    mean = (values * mask).sum() / count
    variance = ((values - mean) ** 2 * mask).sum() / (count - 1)
    return (values - mean) / np.sqrt(variance + 1e-8) * mask


@pytest.mark.parametrize("name", ["grpo", "rloo", "opo", "gpg", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_estimators_equal_a_second_implementation(name: str, data: st.DataObject) -> None:
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    sizes = data.draw(st.lists(st.integers(2, 5), min_size=1, max_size=4))
    scale, with_kl = data.draw(st.booleans()), data.draw(st.booleans())
    index = np.repeat(np.arange(len(sizes)), sizes)
    lengths = draw.integers(1, 7, len(index))
    mask = (np.arange(7) < lengths[:, None]).astype(float)
    outcome = draw.normal(size=len(index)).round(1)
    penalty = draw.normal(0, 0.1, mask.shape) * mask if with_kl else np.zeros_like(mask)
    rewards = -penalty
    rewards[np.arange(len(index)), lengths - 1] += outcome
    groups = [
        Group(
            outcome[index == g].tolist(),
            lengths[index == g].tolist(),
            penalties=[penalty[i, : lengths[i]] for i in np.flatnonzero(index == g)] if with_kl else None,
        )
        for g in range(len(sizes))
    ]
    if all(np.ptp(outcome[index == g]) == 0 for g in range(len(sizes))) and not with_kl:
        return  # nothing to compare: 0, and 0/0 in the matrices
    found = [tokens for group in advantages(name, groups, scale=scale) for tokens in group]
    expected = naive(name, rewards, mask, index, scale=scale)
    for i, tokens in enumerate(found):
        np.testing.assert_allclose(tokens, expected[i, : lengths[i]], rtol=1e-6, atol=1e-6)
