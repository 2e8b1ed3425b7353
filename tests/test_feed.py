"""Which problems a step gets: mixtures by weight, the curriculum, and a state that goes through JSON."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.curriculum import Curriculum
from rlctl.data import Pool, epoch_order
from rlctl.errors import CheckpointError, DataError
from rlctl.feed import Feed
from rlctl.types import Completion, Problem, Prompt, Rollout


def pool(name, size, weight=None):
    return Pool(name, [Problem(f"{name}/{i}", f"{name} {i}?", "1", name) for i in range(size)], weight)


def feed(*pools, batch_size=4, seed=0, **options):
    return Feed(pools, batch_size=batch_size, seed=seed, shuffle=True, **options)


def ids(problems):
    return [problem.id for problem in problems]


def group(problem_id, *rewards):
    completion = Completion(np.zeros(1, np.int32), np.zeros(1, np.float32), "stop")
    prompt = Prompt(np.zeros(1, np.int32), 0)
    problem = Problem(problem_id, "?", "1")
    return [Rollout(problem, prompt, completion, "", r, {} if r is None else {"task": r}) for r in rewards]


# One source


def test_one_source_is_taken_in_the_order_of_its_epochs():
    one = feed(pool("a", 10))
    batches = [ids(one.batch(step)) for step in (1, 2, 3)]
    first, second = epoch_order(10, seed=0, epoch=0), epoch_order(10, seed=0, epoch=1)
    assert batches[0] + batches[1] == [f"a/{i}" for i in first[:8]]
    # Two are left of the first epoch, which fill no batch.
    assert batches[2] == [f"a/{i}" for i in second[:4]]


# Mixtures


def test_shares_of_a_batch_follow_the_weights_and_add_up():
    mixed = feed(pool("a", 50, 3), pool("b", 50, 1), batch_size=10)
    counts = [Counter(p.source for p in mixed.batch(step)) for step in range(1, 41)]
    assert {sum(count.values()) for count in counts} == {10}
    # 7.5 and 2.5 a batch: each is rounded up or down, and over 40 steps they come out even.
    assert {count["a"] for count in counts} == {7, 8}
    assert sum(count["a"] for count in counts) == pytest.approx(300, abs=1)


def test_without_weights_a_source_weighs_as_much_as_it_has_problems():
    mixed = feed(pool("big", 90), pool("small", 10), batch_size=10)
    counts = Counter(p.source for step in range(1, 11) for p in mixed.batch(step))
    assert counts == {"big": 90, "small": 10}


def test_a_mixture_is_a_function_of_seed_and_step():
    pools = (pool("a", 30, 2), pool("b", 7, 1), pool("c", 5, 1))
    through = feed(*pools, batch_size=8)
    batches = [ids(through.batch(step)) for step in range(1, 31)]
    for step in (1, 2, 17, 30):
        jumped = feed(*pools, batch_size=8)
        jumped.seek(step)
        assert ids(jumped.batch(step)) == batches[step - 1]
    assert ids(feed(*pools, batch_size=8, seed=1).batch(1)) != batches[0]


def test_sources_are_mixed_within_a_batch():
    sources = [p.source for p in feed(pool("a", 64, 1), pool("b", 64, 1), batch_size=32).batch(1)]
    assert sources != sorted(sources)


@settings(deadline=None, max_examples=50)
@given(
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=5),
    batch_size=st.integers(1, 40),
    seed=st.integers(0, 2**40),
    step=st.integers(1, 10**6),
)
def test_any_mixture_fills_its_batch_with_shares_that_are_off_by_less_than_one(weights, batch_size, seed, step):
    mixed = feed(*(pool(str(i), 40, w) for i, w in enumerate(weights)), batch_size=batch_size, seed=seed)
    counts = mixed.counts(batch_size, step)
    assert sum(counts) == batch_size
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - batch_size * weight / sum(weights)) < 1 + 1e-6


def test_no_problem_comes_twice_in_a_batch():
    mixed = feed(pool("a", 5, 1), pool("b", 3, 1), batch_size=6)
    for step in range(1, 40):
        batch = ids(mixed.batch(step))
        assert len(set(batch)) == len(batch) == 6


def test_a_source_smaller_than_its_share_of_a_batch_is_refused():
    with pytest.raises(DataError, match="source 'b' has 3 problems, and its weight gives it 5 of each batch of 10"):
        feed(pool("a", 50, 1), pool("b", 3, 1), batch_size=10)


# Curriculum


def curriculum(**options):
    return Curriculum(**{"revisit_share": 0.5, "visits": 1, "seed": 0, **options})


def test_a_problem_solved_by_all_or_by_none_rests_and_one_between_does_not():
    known = curriculum(revisit_share=0.01)
    known.record([group("all", 1.0, 1.0), group("none", 0.0, 0.0), group("some", 0.0, 1.0)], task="task")
    assert [known.rests(name, epoch=1) for name in ("all", "none", "some", "new")] == [True, True, False, False]
    counts = known.metrics()
    assert (counts["data/curriculum/resting_all"], counts["data/curriculum/resting_none"]) == (1, 1)
    assert counts["data/curriculum/passed_over"] == 2
    assert known.metrics()["data/curriculum/passed_over"] == 0


def test_an_unsolved_problem_whose_rewards_differ_still_teaches():
    known = curriculum()
    known.record([group("sql", 0.1, 0.0, 0.0)], task="task")
    assert not any(known.rests("sql", epoch=epoch) for epoch in range(10))


def test_failed_rewards_say_nothing_about_a_problem():
    known = curriculum()
    known.record([group("x", None, None), group("y", 1.0, None)], task="task")
    assert known.history == {}


def test_several_visits_must_agree_before_a_problem_rests():
    known = curriculum(visits=2, revisit_share=0.01)
    known.record([group("x", 1.0, 1.0)], task="task")
    assert not known.rests("x", epoch=1)
    known.record([group("x", 1.0, 1.0)], task="task")
    assert known.rests("x", epoch=2)
    known.record([group("x", 1.0, 0.0)], task="task")
    assert not known.rests("x", epoch=3)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 1.0])
def test_every_resting_problem_has_its_turn_within_one_over_the_share_passes(share):
    known = curriculum(revisit_share=share)
    names = [f"p{i}" for i in range(200)]
    known.record([group(name, 0.0, 0.0) for name in names], task="task")
    for name in names:
        turns = [epoch for epoch in range(120) if not known.rests(name, epoch=epoch)]
        gaps = np.diff([-1, *turns])
        assert gaps.max() <= np.ceil(1 / share)
        assert len(turns) == pytest.approx(120 * share, abs=1)
    # And in any one pass about that share of them comes up.
    now = sum(not known.rests(name, epoch=7) for name in names) / len(names)
    assert now == pytest.approx(share, abs=0.08)


def test_resting_problems_are_passed_over_and_come_back():
    known = curriculum(revisit_share=0.25)
    one = feed(pool("a", 40), batch_size=4, curriculum=known)
    visits = Counter()
    for step in range(1, 201):
        batch = one.batch(step)
        visits.update(ids(batch))
        # The first half is always solved, the second half never settles.
        known.record(
            [group(p.id, 1.0, 1.0 if int(p.id[2:]) < 20 else 0.0) for p in batch],
            task="task",
        )
    solved = [visits[f"a/{i}"] for i in range(20)]
    open_ = [visits[f"a/{i}"] for i in range(20, 40)]
    assert min(solved) >= 2
    assert sum(open_) > 3 * sum(solved)


def test_a_batch_is_full_even_when_every_problem_rests():
    known = curriculum(revisit_share=0.01)
    one = feed(pool("a", 8), batch_size=4, curriculum=known)
    for step in range(1, 30):
        batch = one.batch(step)
        assert len(set(ids(batch))) == 4
        known.record([group(p.id, 0.0, 0.0) for p in batch], task="task")


def test_a_batch_that_reaches_into_the_next_pass_has_no_problem_twice():
    known = curriculum(revisit_share=0.25, visits=2)
    one = feed(pool("a", 20), pool("b", 15), batch_size=6, seed=3, curriculum=known)
    for step in range(1, 121):
        had = ids(one.batch(step)) + ids(one.more(step, 3))
        assert len(set(had)) == len(had) == 9
        known.record([group(name, 1.0, float(int(name[2:]) % 2)) for name in had[:6]], task="task")


# State


def test_state_goes_through_json_and_the_run_goes_on_as_if_never_stopped():
    def played(one, steps):
        batches = []
        for step in steps:
            batch = one.batch(step) + one.more(step, 2)
            one.curriculum.record([group(p.id, 1.0, float(len(p.id) % 2)) for p in batch], task="task")
            batches.append(ids(batch))
        return batches

    pools = (pool("a", 20, 2), pool("b", 12, 1))
    whole = played(feed(*pools, batch_size=6, curriculum=curriculum()), range(1, 21))
    first = feed(*pools, batch_size=6, curriculum=curriculum())
    played(first, range(1, 11))
    state = json.loads(json.dumps(first.state_dict()))
    second = feed(*pools, batch_size=6, curriculum=curriculum())
    second.load_state_dict(state)
    assert played(second, range(11, 21)) == whole[10:]


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({}, "of other sources"),
        ({"cursors": {"b": 1}}, r"of other sources \(b\) than this run's \(a\)"),
        ({"cursors": {"a": -1}}, "no whole number"),
        ({"cursors": {"a": "1"}}, "no whole number"),
        ({"cursors": {"a": True}}, "no whole number"),
        ({"cursors": {"a": 1}, "curriculum": {"history": {"a/1": ["maybe"]}}}, "not one that rlctl wrote"),
        ({"cursors": {"a": 1}, "curriculum": []}, "not one that rlctl wrote"),
    ],
)
def test_a_state_that_is_not_this_runs_is_refused(state, says):
    with pytest.raises(CheckpointError, match=says):
        feed(pool("a", 8), curriculum=curriculum()).load_state_dict(state)


def test_further_problems_of_a_step_are_new_to_it_and_end_where_the_source_does():
    one = feed(pool("a", 10), batch_size=4)
    had = ids(one.batch(1))
    further = ids(one.more(1, 4)) + ids(one.more(1, 4))
    assert len(further) == 6
    assert sorted(had + further) == sorted(f"a/{i}" for i in range(10))
