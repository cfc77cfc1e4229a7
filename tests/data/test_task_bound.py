"""The lower bound on the number of batch tasks, compared with the best policy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cavs
from tests.data.dags import child_lists


def batch_of(children, present):
    return cavs.batch([cavs.Graph(children, {"x": np.where(present, 1, -1).astype(np.int32)})])


def best(children, kind, working):
    """Return the fewest tasks, by breadth-first search over sets of completed vertices."""
    todo = frozenset(v for v in range(len(children)) if kind[v] in working)
    states, count = {frozenset(range(len(children))) - todo}, 0
    while not any(todo <= done for done in states):
        following = set()
        for done in states:
            ready = [v for v in todo - done if all(c in done for c in children[v])]
            for k in {kind[v] for v in ready}:  # more at once is never worse
                following.add(done | {v for v in ready if kind[v] == k})
        states, count = following, count + 1
    return count


@settings(max_examples=150, deadline=None)
@given(child_lists(max_vertices=9, max_arity=3), st.integers(0, 2**31), st.booleans())
def test_no_policy_needs_fewer(children, seed, all_kinds):
    present = np.random.default_rng(seed).random(len(children)) < 0.5
    schedule = batch_of(children, present).schedule(("x",))
    kinds = schedule.kinds
    row_kind = {}
    for k, (_, (begin, end), _) in enumerate(kinds):
        row_kind.update(dict.fromkeys(np.asarray(schedule.order)[begin:end].tolist(), k))
    # Leaves have no task of their own in a compiled program: they run before the first.
    working = {k for k, (key, _, _) in enumerate(kinds) if all_kinds or key & 1}
    bound = schedule.fewest_tasks(working)
    tasks = sum(t[0] in working for t in schedule.tasks)
    optimum = best(children, [row_kind[v] for v in range(len(children))], working)
    levels = len({t[1] for t in schedule.tasks if t[0] in working})
    assert levels <= bound <= optimum <= tasks


@pytest.mark.parametrize(("pattern", "expected"), [("aaaa", 4), ("abab", 4), ("aabb", 4)])
def test_a_chain_reaches_the_bound(pattern, expected):
    children = [[], *([i] for i in range(4))]
    present = [True, *(c == "a" for c in pattern)]
    schedule = batch_of(children, present).schedule(("x",))
    working = {k for k, (key, _, _) in enumerate(schedule.kinds) if key & 1}
    assert schedule.fewest_tasks(working) == expected


def test_kinds_of_different_graphs_add_up():
    chains = []
    for value in (1, -1):
        token = np.array([1, value, value, value], np.int32)
        chains.append(cavs.Graph([[], [0], [1], [2]], {"x": token}))
    schedule = cavs.batch(chains).schedule(("x",))
    working = {k for k, (key, _, _) in enumerate(schedule.kinds) if key & 1}
    assert schedule.fewest_tasks(working) == 6  # the depth is 3
    assert schedule.fewest_tasks(set()) == 0
    with pytest.raises(IndexError):
        schedule.fewest_tasks({99})
