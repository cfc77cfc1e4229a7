"""Policies of batching: valid schedules, the agenda by definition, learned policies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.word_lattices import lattices
from cavs import _engine
from cavs.data import Graph, batch
from tests.data.dags import child_lists, naive_levels
from tests.draws import examples

AGENDA = _engine.SchedulingPolicy()


def inner_tasks(schedule):
    """Return the tasks of vertices with children, and the kinds of these."""
    inner = {i for i, (key, _, _) in enumerate(schedule.kinds) if key & 1}
    return [task for task in schedule.tasks if task[0] in inner], inner


def check_valid(schedule):
    """Every vertex runs once, after its children, in a task of its kind."""
    n = len(schedule.order)
    number, step = np.full(n, -1), np.full(n, -1)
    kind = np.full(n, -1)
    for i, (_, (begin, end), edges) in enumerate(schedule.kinds):
        kind[begin:end] = i
        assert edges == (schedule.edge_offsets[begin], schedule.edge_offsets[end])
    last = 0
    for t, (k, level, (begin, end), edges) in enumerate(schedule.tasks):
        assert begin < end and (number[begin:end] == -1).all() and (kind[begin:end] == k).all()
        assert edges == (schedule.edge_offsets[begin], schedule.edge_offsets[end])
        number[begin:end], step[begin:end] = t, level
        assert last <= level <= last + 1
        last = level
    assert (number >= 0).all() and schedule.num_levels == last + 1
    child, parent = np.asarray(schedule.child), np.asarray(schedule.parent)
    assert (number[child] < number[parent]).all()
    assert (step[child] < step[parent]).all()  # tasks of one step run at the same time


def drawn_policy(rng, keys):
    """Return a table with random choices for random sets of kinds."""
    keys = list(keys)
    sets = [int(s) for s in rng.integers(1, 2 ** len(keys), 6)]
    choices = {s: int(rng.choice([i for i in range(len(keys)) if s >> i & 1])) for s in sets}
    return _engine.SchedulingPolicy(keys, choices)


@examples(100)
@given(
    st.lists(child_lists(max_vertices=14, max_arity=3), min_size=1, max_size=3),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_every_policy_gives_a_valid_schedule(many, bits, by_number, seed):
    rng = np.random.default_rng(seed)
    topology = _engine.collate([Graph(children).topology for children in many])
    presence = rng.integers(0, 2**bits, topology.num_vertices).astype(np.uint32)
    level = _engine.make_schedule(topology, presence, by_number=by_number)
    tasks, inner = inner_tasks(level)
    bound = level.fewest_tasks(inner)
    learned, count, same, _ = _engine.learn_policy(topology, presence, seed)
    assert same == bound
    keys = [key for key, _, _ in level.kinds if key & 1]
    policies = {"agenda": AGENDA, "learned": learned, "drawn": drawn_policy(rng, [*keys[:5], 999])}
    found = {"level": len(tasks)}
    for name, policy in policies.items():
        s = _engine.make_schedule(topology, presence, by_number=by_number, policy=policy)
        check_valid(s)
        assert s.kinds == level.kinds
        assert sorted(s.order.tolist()) == list(range(topology.num_vertices))
        found[name] = len(inner_tasks(s)[0])
        assert found[name] >= bound
    assert found["learned"] == count <= found["agenda"]
    if len(keys) < 2:
        assert len(set(found.values())) == 1


@examples(60)
@given(child_lists(max_vertices=16, max_arity=3), st.integers(0, 2**31))
def test_the_agenda_takes_the_least_mean_level_of_what_remains(children, seed):
    presence = np.random.default_rng(seed).integers(0, 3, len(children)).astype(np.uint32)
    s = _engine.make_schedule(_engine.collate([Graph(children).topology]), presence, policy=AGENDA)
    levels = naive_levels(children)
    left = {v for v in range(len(children)) if children[v]}
    expected = []
    while left:
        kinds = {}
        for v in left:
            kinds.setdefault(int(presence[v]), []).append(v)
        ready = {k: [v for v in vs if not left & {*children[v]}] for k, vs in kinds.items()}
        means = {k: np.mean([levels[v] for v in kinds[k]]) for k in kinds if ready[k]}
        chosen = min(means, key=lambda k: (round(means[k], 9), k))
        expected.append(sorted(ready[chosen]))
        left -= set(ready[chosen])
    tasks, _ = inner_tasks(s)
    assert [sorted(s.order[begin:end].tolist()) for _, _, (begin, end), _ in tasks] == expected


def test_the_agenda_compares_levels_of_millions_of_vertices():
    """Sums of levels times numbers of vertices exceed int64: the upper half of a chain waits."""
    n = 3_700_000
    offsets = np.concatenate([[0], np.arange(n + 2)]).astype(np.int32)
    children = np.append(np.arange(n), 0).astype(np.int32)  # one more parent of the first vertex
    topology = _engine.collate([_engine.Graph(offsets, children)])
    presence = (np.arange(n + 2) > n // 2).astype(np.uint32)
    _, tasks, bound, episodes = _engine.learn_policy(topology, presence)
    assert (tasks, bound, episodes) == (n, n, 0)  # the agenda needs no more than the bound


def tasks_of(graphs, seed=0, sample=None):
    """Return tasks by policy, and the bound, for a batch of lattices; sample: to learn from."""
    b = batch(graphs)
    optional = ("char", "word")
    learned = b if sample is None else batch(sample)
    policy = _engine.learn_policy(learned.topology, learned.presence(optional), seed)[0]
    schedules = {
        "level": b.schedule(optional),
        "agenda": b.schedule(optional, policy=AGENDA),
        "learned": b.schedule(optional, policy=policy),
    }
    found = {name: len(inner_tasks(s)[0]) for name, s in schedules.items()}
    return found, schedules["level"].fewest_tasks(inner_tasks(schedules["level"])[1])


@pytest.mark.parametrize("seed", range(4))
def test_a_learned_policy_needs_no_more_tasks_on_lattices(seed):
    found, bound = tasks_of(lattices(16, seed), seed)
    assert bound <= found["learned"] <= min(found["agenda"], found["level"])
    assert found["learned"] < found["level"]


@pytest.mark.parametrize("seed", range(3))
def test_a_learned_policy_waits_with_outputs_until_all_are_ready(seed):
    """Trees with an output above each vertex: the agenda runs outputs between the levels."""
    rng = np.random.default_rng(seed)
    graphs, presence = [], []
    for n in rng.integers(5, 40, 32):
        children = [[] for _ in range(n)]
        for v in range(n - 1):
            children[int(rng.integers(v + 1, n))].append(v)
        graphs.append(Graph(children + [[v] for v in range(n)]))
        presence += [0] * n + [1] * n
    topology, masks = batch(graphs).topology, np.array(presence, np.uint32)
    policy, tasks, bound, _ = _engine.learn_policy(topology, masks)
    found = {
        name: len(inner_tasks(_engine.make_schedule(topology, masks, policy=p))[0])
        for name, p in {"level": None, "agenda": AGENDA, "learned": policy}.items()
    }
    assert found["learned"] == tasks == bound < found["agenda"] < found["level"]


def test_a_policy_learned_from_one_batch_serves_others():
    for seed in range(5, 9):
        found, bound = tasks_of(lattices(16, seed), sample=lattices(16, 1))
        assert bound <= found["learned"] <= 1.05 * min(found["agenda"], found["level"])


def test_learning_is_deterministic_and_ends_at_the_bound():
    b = batch(lattices(8, 3))
    sample = b.topology, b.presence(("char", "word"))
    one, other = (_engine.learn_policy(*sample, 7) for _ in range(2))
    assert one[0].kinds == other[0].kinds and one[0].choices == other[0].choices
    assert one[1:] == other[1:]
    chain = batch([Graph.chain(5)])
    policy, tasks, bound, episodes = _engine.learn_policy(chain.topology)
    assert (tasks, bound, episodes) == (4, 4, 0) and policy.choices == {}
    assert _engine.learn_policy(batch([Graph([[]])]).topology)[1:] == (0, 0, 0)


def test_invalid_policies_are_refused():
    for kinds, choices in (([1], {2: 0}), ([1, 3], {2: 0}), ([1], {1: -1}), ([1], {1: 1})):
        with pytest.raises(ValueError, match="is none of the set"):
            _engine.SchedulingPolicy(kinds, choices)
    with pytest.raises(ValueError, match="at most 64 kinds, found 65"):
        _engine.SchedulingPolicy(list(range(65)))
    b = batch([Graph.chain(3)])
    with pytest.raises(ValueError, match="presence has 2 masks for 3 vertices"):
        _engine.learn_policy(b.topology, np.zeros(2, np.uint32))


def test_more_kinds_than_a_table_has_run_by_the_agenda():
    children = [[], *([0] for _ in range(70))]
    presence = np.arange(71, dtype=np.uint32)
    topology = batch([Graph(children)]).topology
    policy, tasks, bound, episodes = _engine.learn_policy(topology, presence)
    assert (tasks, bound, episodes) == (70, 70, 0)
    check_valid(_engine.make_schedule(topology, presence, policy=policy))
