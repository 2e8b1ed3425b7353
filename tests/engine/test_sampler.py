from __future__ import annotations

import numpy as np
import pytest
import torch

from rlctl import seeds
from rlctl.engine import sampler
from rlctl.engine.draw import draw
from rlctl.engine.model import Policy, wrap
from rlctl.engine.sampler import Limits, room
from rlctl.errors import BackendError
from rlctl.types import Completion, Prompt, Sampling
from tests import defaults
from tests.tiny import build, tiny_config


@pytest.fixture(scope="module")
def policy() -> Policy:
    return wrap(build(tiny_config()))


def prompts(*seeds_: int) -> list[Prompt]:
    return [Prompt(np.arange(1, 4 + seed % 3, dtype=np.int32), seed) for seed in seeds_]


def generate(
    policy: Policy, *seeds_: int, n: int = 4, ends: tuple[int, ...] = (256,), seqs: int = 256, **options: float
) -> list[list[Completion]]:
    sampling = defaults.sampling(**{"max_new_tokens": 20, **options})  # type: ignore[arg-type]
    limits = Limits(1e9, seqs)
    return sampler.generate(policy, prompts(*seeds_), n=n, sampling=sampling, end_token_ids=ends, limits=limits)[0]


def ids(groups: list[list[Completion]]) -> list[list[list[int]]]:
    return [[c.token_ids.tolist() for c in group] for group in groups]


def test_draws_follow_the_distribution() -> None:
    # 20,000 draws: the standard error of a share p is sqrt(p(1-p)/20000) < 0.0036; five of them are allowed.
    torch.manual_seed(0)
    logits = torch.randn(1, 700) * 2
    uniform = np.random.default_rng(0).random(20_000)
    tokens, logprobs = draw(logits.expand(20_000, -1), uniform, defaults.sampling(temperature=0.8))
    expected = (logits / 0.8).softmax(-1)[0]
    share = torch.bincount(tokens, minlength=700) / 20_000
    assert (share - expected).abs().max() < 0.018
    torch.testing.assert_close(logprobs, expected.log()[tokens], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_pass_a_chi_square_test_against_the_full_softmax(dtype: torch.dtype) -> None:
    # Over k words the statistic has mean k - 1 and variance 2 (k - 1); five standard deviations are allowed.
    torch.manual_seed(1)
    logits = (torch.randn(1, 3001) * 1.5).to(dtype)
    draws = 300_000
    counts = torch.zeros(3001)
    for part in np.array_split(np.random.default_rng(2).random(draws), 100):
        counts += torch.bincount(draw(logits.expand(len(part), -1), part, defaults.sampling())[0], minlength=3001)
    expected = logits.float().softmax(-1)[0] * draws
    usual = expected >= 5
    counts, expected = (torch.cat([x[usual], x[~usual].sum()[None]]) for x in (counts, expected))
    freedom = len(counts) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5


def test_logprobs_are_those_of_the_logits_that_were_drawn_from() -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 50_000).bfloat16()  # more than one tile
    tokens, logprobs = draw(logits, np.random.default_rng(0).random(40), defaults.sampling(temperature=0.7))
    expected = (logits.float() / 0.7).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("vocab", [3, 255, 256, 257, 1000])
def test_a_draw_inverts_the_cumulative_sum_at_both_ends(vocab: int) -> None:
    logits = torch.zeros(3, vocab)
    tokens, _ = draw(logits, np.array([0.0, 1 - 2**-53, 1.5 / vocab]), defaults.sampling())
    assert tokens.tolist() == [0, vocab - 1, 1]


def test_a_word_of_probability_zero_is_never_drawn() -> None:
    logits = torch.full((1000, 600), float("-inf"))
    logits[:, 100] = 0.0
    tokens, logprobs = draw(logits, np.linspace(0, 1 - 1e-16, 1000), defaults.sampling())
    assert set(tokens.tolist()) == {100}
    assert logprobs.abs().max() == 0


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (defaults.sampling(top_k=2), {0, 1}),
        (defaults.sampling(top_p=0.6), {0, 1}),
        (defaults.sampling(top_p=0.5), {0}),
        (defaults.sampling(min_p=0.5), {0, 1}),
        (defaults.sampling(min_p=0.5, top_k=1), {0}),
        (defaults.sampling(), {0, 1, 2, 3}),
    ],
)
def test_filters_keep_the_likeliest(sampling: Sampling, allowed: set[int]) -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05])).expand(4000, -1)
    tokens, logprobs = draw(logits, np.linspace(0, 1 - 1e-9, 4000), sampling)
    assert set(tokens.tolist()) == allowed
    # Reported over the full vocabulary, whatever was filtered.
    torch.testing.assert_close(logprobs, logits[0][tokens])


def test_temperature_zero_takes_the_likeliest(policy: Policy) -> None:
    groups = generate(policy, 1, n=3, temperature=0.0)
    assert len({tuple(c.token_ids) for c in groups[0]}) == 1


def test_samples_of_a_group_differ_and_a_second_run_repeats_them(policy: Policy) -> None:
    # Field fault 138.
    first, second = ids(generate(policy, 1, 2)), ids(generate(policy, 1, 2))
    assert first == second
    assert len({tuple(c) for group in first for c in group}) == 8


def test_draws_do_not_depend_on_the_batch(policy: Policy) -> None:
    together, alone = ids(generate(policy, 1, 2, 3)), [ids(generate(policy, seed))[0] for seed in (1, 2, 3)]
    assert together == alone
    assert ids(generate(policy, 1, 2, 3, seqs=4)) == together  # one prompt at a time
    assert ids(generate(policy, 1, 2, 3, seqs=1)) == together
    assert [group[:2] for group in together] == ids(generate(policy, 1, 2, 3, n=2))


def test_every_end_token_ends_a_completion(policy: Policy) -> None:
    # Field faults 036 and 037: several end tokens; nothing after the first is kept.
    ends = tuple(range(200, 260))
    groups = generate(policy, 1, 2, n=8, ends=ends)
    for completion in (c for group in groups for c in group):
        sampled = completion.token_ids.tolist()
        assert not any(token in ends for token in sampled[:-1])
        assert (completion.finish_reason == "stop") == (sampled[-1] in ends)
        assert completion.truncated == (len(sampled) == 20 and sampled[-1] not in ends)
        assert len(completion.logprobs) == len(sampled)
    assert {c.finish_reason for group in groups for c in group} >= {"stop"}


def test_uniform_numbers_are_functions_of_seed_and_position() -> None:
    numbers = np.array([seeds.uniforms(np.arange(1000, dtype=np.uint64), p) for p in range(5)])
    assert np.array_equal(numbers[3, 10:20], seeds.uniforms(np.arange(10, 20, dtype=np.uint64), 3))
    assert len(np.unique(numbers)) == 5000
    # Mean of 5,000 uniform numbers: standard error 0.0041.
    assert abs(numbers.mean() - 0.5) < 0.02
    assert numbers.min() >= 0
    assert numbers.max() < 1


def test_seeds_differ_by_run_step_problem_and_sample() -> None:
    prompt_seeds = {seeds.prompt_seed(run, step, p) for run in (0, 1) for step in (1, 2) for p in ("a", "b")}
    assert len({seeds.sample_seed(s, i) for s in prompt_seeds for i in range(8)}) == 64


def test_a_long_row_does_not_hold_the_others(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    # Room for two groups of four. In turns, each pair of groups would take as many steps as its longest row.
    steps = []
    begin = sampler.DecodeStep
    monkeypatch.setattr(sampler, "DecodeStep", lambda cache: steps.append(cache.num_rows) or begin(cache))
    groups = generate(policy, *range(12), n=4, ends=tuple(range(236, 260)), seqs=8, max_new_tokens=60)
    lengths = [[len(c.token_ids) for c in group] for group in groups]
    in_turns = sum(max(map(max, lengths[i : i + 2])) - 1 for i in range(0, 12, 2))
    assert max(steps) <= 8
    # Every token but a row's last is computed once, and nothing else is.
    assert sum(steps) == sum(length - 1 for group in lengths for length in group)
    assert len(steps) < 0.8 * in_turns


def some_room(prompt: int, kv_tokens: int, *, seqs: int = 256, num_prompts: int = 9) -> tuple[int, int]:
    limits = Limits(kv_tokens * 10.0, seqs)
    space = room(prompt_tokens=prompt, new_tokens=5, num_prompts=num_prompts, n=2, bytes_per_token=10, limits=limits)
    return space.rows, space.groups


def test_room_is_for_whole_groups_at_full_length() -> None:
    # A group of two takes 10 tokens, and two slots for prompts of 20: 50 in all.
    assert some_room(20, 100) == (4, 4)
    assert some_room(20, 99) == (2, 2)
    assert some_room(20, 1000, seqs=7) == (6, 6)
    assert some_room(20, 1000, num_prompts=2) == (4, 2)
    assert some_room(20, 30) == (2, 1)  # one group fits, a second prompt does not


def test_a_group_that_cannot_fit_is_refused_with_the_size_it_needs() -> None:
    with pytest.raises(BackendError, match=r"one group take 2.79e-07 GiB .*kv_cache_gb is 2.7e-07") as error:
        some_room(20, 29)
    assert "raise local.kv_cache_gb to at least" in (error.value.hint or "")
