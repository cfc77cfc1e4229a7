"""Random graphs, and slow reference implementations of levels, numbers and schedules."""

from hypothesis import strategies as st


@st.composite
def child_lists(draw, max_vertices=24, max_arity=6):
    """Child lists of any DAG: several roots, shared and repeated children, isolated vertices."""
    n = draw(st.integers(1, max_vertices))
    rank = draw(st.permutations(range(n)))  # vertices are numbered in any order
    by_rank = {r: v for v, r in enumerate(rank)}
    children = []
    for v in range(n):
        below = [by_rank[r] for r in range(rank[v])]
        size = st.integers(0, max_arity if below else 0)
        few = st.lists(st.sampled_from(below), max_size=draw(size)) if below else st.just([])
        children.append(draw(few))
    return children


def with_gaps(children, rng):
    """Return child lists in which some positions are empty, -1, also behind the last child."""
    return [
        [k for c in kids for k in ([-1] * (rng.random() < 0.3) + [c])] + [-1] * rng.integers(0, 2)
        for kids in children
    ]


def random_children(rng, n, max_arity):
    """Return such child lists from a NumPy generator, for sizes that are slow with Hypothesis."""
    rank = rng.permutation(n)
    by_rank = rng.permutation(n)
    by_rank[rank] = range(n)
    arity = rng.integers(0, max_arity + 1, n)
    return [
        [int(by_rank[r]) for r in rng.integers(0, rank[v], arity[v])] if rank[v] else []
        for v in range(n)
    ]


def naive_levels(children):
    levels = [0] * len(children)
    for _ in children:  # as many sweeps as the longest path can need
        new = [1 + max((levels[c] for c in kids if c >= 0), default=-1) for kids in children]
        if new == levels:
            return levels
        levels = new
    return levels


def naive_numbers(children):
    """Return the lowest position of every vertex among children, at most 7; 0 for roots."""
    positions = [[] for _ in children]
    for kids in children:
        for k, c in enumerate(kids):
            if c >= 0:
                positions[c].append(min(k, 7))
    return [min(found, default=0) for found in positions]


def kind_order(key):
    """Return the sort key of kinds: those with children first, then by ascending key."""
    return key % 2 == 0, key


def naive_schedule(graphs, presence):
    """Return keys, levels, rows by (kind, level, number, vertex) and edges by (row, position)."""
    children, levels, numbers, base = [], [], [], 0
    for graph in graphs:
        local = [[int(c) for c in graph.children(v)] for v in range(graph.num_vertices)]
        children += [[base + c for c in kids if c >= 0] for kids in local]
        levels += naive_levels(local)
        numbers += naive_numbers(local)
        base += len(local)
    keys = [2 * int(presence[v]) + bool(children[v]) for v in range(base)]
    order = sorted(range(base), key=lambda v: (kind_order(keys[v]), levels[v], numbers[v], v))
    row = {v: r for r, v in enumerate(order)}
    edges = [(r, row[c]) for r, v in enumerate(order) for c in children[v]]
    first_edge = [0]
    for kids in children:
        first_edge.append(first_edge[-1] + len(kids))
    edge_order = [first_edge[v] + k for v in order for k in range(len(children[v]))]
    return keys, levels, order, edges, edge_order
