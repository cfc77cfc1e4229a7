"""Trees over ranks: validity, named topologies, routes, and minimum spanning trees."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs.distributed.comm import SingleCommunicator, run_threads
from cavs.distributed.comm.topology import (
    NAMES,
    Topology,
    check_tree,
    children,
    minimum_spanning_tree,
    rerooted,
)
from cavs.errors import ConfigError

HOSTS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=9)


@st.composite
def trees(draw, most=9):
    """Return a random tree of 1 to `most` ranks."""
    order = draw(st.permutations(range(draw(st.integers(1, most)))))
    parents = list(order)
    for i, rank in enumerate(order):
        parents[rank] = order[draw(st.integers(0, i - 1))] if i else rank
    return tuple(parents)


def edges(tree):
    return {frozenset((rank, parent)) for rank, parent in enumerate(tree) if rank != parent}


@given(trees())
def test_a_tree_is_valid(tree):
    assert check_tree(tree, len(tree)) == tree
    assert check_tree(np.array(tree, np.int32), len(tree)) == tree
    below = [children(tree, rank) for rank in range(len(tree))]
    assert sorted(itertools.chain(*below)) == [r for r, p in enumerate(tree) if r != p]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_an_array_is_a_tree_if_every_rank_reaches_the_only_root(parents):
    size = len(parents)

    def reached(rank):
        for _ in range(size):
            rank = parents[rank] if rank < size else size
        return rank

    roots = {reached(rank) for rank in range(size)}
    valid = len(roots) == 1 and max(parents) < size and parents[min(roots)] in roots
    if valid:
        assert check_tree(parents, size) == tuple(parents)
    else:
        with pytest.raises(ConfigError):
            check_tree(parents, size)


@pytest.mark.parametrize(
    ("parents", "error"),
    [
        ([0, 1, 0], r"ranks 0 and 1 are both roots of \[0, 1, 0\]"),
        ([0, 2, 1], r"ranks 2 and 1 of \[0, 2, 1\] are in a cycle: the parent of rank 2 is 1"),
        ([1, 0, 0], "are in a cycle"),
        ([0, 0], "a tree of 2 ranks does not fit 3 ranks"),
        ([0, 3, 0], "the parent of rank 1 is 3, but ranks are 0 to 2"),
        ([0, -1, 0], "the parent of rank 1 is -1, but ranks are 0 to 2"),
        ([0.0, 0.0, 0.0], r"an array of float64 of shape \(3,\) is no tree"),
        ([[0, 0, 0]], r"an array of int64 of shape \(1, 3\) is no tree"),
    ],
)
def test_other_arrays_are_refused(parents, error):
    with pytest.raises(ConfigError, match=error):
        check_tree(parents, 3)


@given(trees(), st.data())
def test_another_root_keeps_the_edges(tree, data):
    root = data.draw(st.integers(0, len(tree) - 1))
    found = check_tree(rerooted(tree, root), len(tree))
    assert found[root] == root and edges(found) == edges(tree)


@given(HOSTS, st.sampled_from(NAMES))
def test_routes_of_a_topology_are_trees_of_one_root(hosts, name):
    size, topology = len(hosts), Topology(hosts)
    routes = topology.routes(name)
    assert routes == topology.routes(routes.text if name != "AUTO" else "AUTO")
    for route in routes.routes:
        up, down = (check_tree(tree, size) for tree in route)
        assert [r for r in range(size) if up[r] == r] == [r for r in range(size) if down[r] == r]
        hops = [route.hop(rank) for rank in range(size)]
        assert sum(len(hop.sources) + len(hop.targets) for hop in hops) == 2 * (size - 1)
    roots = [route.up[0] for route in routes.routes]
    if name in {"MULTI_STAR", "CLIQUE"}:
        assert roots == list(range(size))
    if name == "RING":
        assert len(roots) == size
        assert all(
            abs(i - p) in {0, 1, size - 1} for r in routes.routes for i, p in enumerate(r.up)
        )
    if name == "BINARY_TREE":
        assert max(len(route.hop(r).targets) for route in routes.routes for r in range(size)) <= 2


@given(HOSTS, st.sampled_from(["BINARY_TREE_STAR", "MULTI_BINARY_TREE_STAR"]))
def test_one_edge_leads_from_each_host_to_the_others(hosts, name):
    for route in Topology(hosts).routes(name).routes:
        across = [edge for edge in edges(route.up) if len({hosts[rank] for rank in edge}) == 2]
        assert len(across) == len(set(hosts)) - 1


def test_topologies_by_example():
    one, two = Topology(["a"] * 4), Topology(["a", "b", "a", "b", "c"])
    assert one.routes().text == "STAR" and two.routes().text == "BINARY_TREE_STAR"
    assert one.routes().routes[0].up == (0, 0, 0, 0)
    assert one.routes("binary_tree").routes[0].up == (0, 0, 0, 1)
    assert two.routes().routes[0].up == (0, 0, 0, 1, 0)
    assert [r.up for r in two.routes("MULTI_BINARY_TREE_STAR").routes][:2] == [
        (0, 0, 0, 1, 0),
        (2, 3, 3, 3, 3),
    ]
    ring = one.routes("RING").routes[1]
    assert ring.up == (1, 1, 3, 0) and ring.down == (3, 1, 1, 2)
    for tree in ([1, 1, 1, 2], "TREE(1, 1, 1, 2)"):
        routes = one.routes(tree)
        assert routes.text == "TREE(1, 1, 1, 2)" and routes.routes[0].down == (1, 1, 1, 2)
    by_hash = {one.routes("MULTI_STAR").of_chunk(f"g{i}", 0) for i in range(50)}
    assert len(by_hash) == 4
    assert len({one.routes("CLIQUE").of_chunk(f"g{i}", 0) for i in range(50)}) == 1
    with pytest.raises(ConfigError, match=r"there is no topology 'SNAKE'\n(.|\n)*BINARY_TREE"):
        one.routes("SNAKE")
    with pytest.raises(ConfigError, match="a tree of 1 ranks does not fit 4"):
        one.routes("TREE(0)")


def brute_force(weights):
    """Return the weight of the lightest of all trees, and that of the next one."""
    size = len(weights)
    both = (weights + weights.T) / 2
    pairs = list(itertools.combinations(range(size), 2))
    found = []
    for chosen in itertools.combinations(pairs, size - 1):
        near = {0}
        for _ in chosen:
            near |= {r for pair in chosen if near & set(pair) for r in pair}
        if len(near) == size:
            found.append((sum(both[pair] for pair in chosen), set(map(frozenset, chosen))))
    return sorted(found, key=lambda x: x[0])


@given(st.integers(1, 5), st.integers(0, 2**32 - 1), st.booleans())
def test_the_minimum_spanning_tree_equals_brute_force(size, seed, ties):
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 4, (size, size)) * 1.0 if ties else rng.random((size, size))
    tree = check_tree(minimum_spanning_tree(weights), size)
    assert tree[0] == 0
    (least, chosen), *others = brute_force(weights)
    both = (weights + weights.T) / 2
    assert sum(both[tuple(edge)] for edge in edges(tree)) == pytest.approx(least)
    if not others or others[0][0] > least + 1e-12:
        assert edges(tree) == chosen


def test_ties_go_to_smaller_ranks():
    assert minimum_spanning_tree(np.ones((4, 4))) == (0, 0, 0, 0)
    assert minimum_spanning_tree(np.full((3, 3), np.inf)) == (0, 0, 0)
    chain = np.array([[0, 1, 9], [1, 0, 1], [9, 1, 0]])
    assert minimum_spanning_tree(chain) == (0, 0, 1)


def test_weights_that_are_none_are_refused():
    with pytest.raises(ConfigError, match=r"weights of shape \(2, 3\) are no square matrix"):
        minimum_spanning_tree(np.ones((2, 3)))
    with pytest.raises(ConfigError, match="the edge from rank 0 to rank 1 is NaN"):
        minimum_spanning_tree(np.array([[0, np.nan], [1, 0]]))


def test_a_communicator_knows_the_hosts_of_its_ranks():
    hosts = ["a", "b", "a", "b"]

    def work(c):
        return c.topology.hosts, c.topology.teams, c.split(c.rank // 2).topology.hosts

    for rank, (found, teams, part) in enumerate(run_threads(4, work, hosts=hosts)):
        assert list(found) == hosts and teams == ((0, 2), (1, 3))
        assert part == ("a", "b"), rank
    assert len(SingleCommunicator().topology.hosts) == 1
    with pytest.raises(ConfigError, match="1 hosts for 2 ranks"):
        run_threads(2, work, hosts=["a"])
