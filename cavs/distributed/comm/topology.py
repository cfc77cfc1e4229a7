"""Topologies: trees over ranks, along which named collectives sum and broadcast.

A tree is one number a rank, its parent; the root is its own parent. Sums travel up a tree and
results down, 2 (K - 1) messages in all (KungFu, Mai et al., OSDI 2020, section 4.3).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavs.errors import ConfigError

Tree = tuple[int, ...]  # the parent of each rank
NAMES = (
    "STAR",
    "MULTI_STAR",
    "RING",
    "CLIQUE",
    "BINARY_TREE",
    "BINARY_TREE_STAR",
    "MULTI_BINARY_TREE_STAR",
    "AUTO",
)
_TREE = re.compile(r"TREE\(([\d\s,]+)\)")


class Hop(NamedTuple):
    """The ranks that one rank talks to on a route.

    parent: the rank that takes its sum; None at the root. sources: the ranks whose sums it adds, in
    this order, behind its own values. targets: the ranks that it passes the result on to.
    """

    parent: int | None
    sources: Tree
    targets: Tree


class Route(NamedTuple):
    """A pair of trees of one root: `up` leads sums to it, `down` results away from it."""

    up: Tree
    down: Tree

    def hop(self, rank: int) -> Hop:
        """Return the neighbours of `rank`."""
        parent = self.up[rank]
        sources, targets = (children(tree, rank) for tree in self)
        return Hop(None if parent == rank else parent, sources, targets)


@dataclass(frozen=True)
class Routes:
    """Routes that share the chunks of an array. text: the name that `Topology.routes` takes.

    by_hash: True if the name of the array selects the first route, so that small arrays use all.
    """

    text: str
    routes: tuple[Route, ...]
    by_hash: bool = False

    def of_chunk(self, name: str, chunk: int) -> Route:
        """Return the route of chunk number `chunk` of the array `name`."""
        first = zlib.crc32(name.encode()) if self.by_hash else 0
        return self.routes[(first + chunk) % len(self.routes)]


class Topology:
    """The hosts of ranks, and routes between the ranks. hosts: one name a rank."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = tuple(hosts)
        self.size = len(self.hosts)

    @cached_property
    def teams(self) -> tuple[Tree, ...]:
        """The ranks of each host, hosts in the order of their lowest ranks."""
        return tuple(
            tuple(r for r, other in enumerate(self.hosts) if other == host)
            for host in dict.fromkeys(self.hosts)
        )

    def routes(self, topology: str | Sequence[int] = "AUTO") -> Routes:
        """Return the routes of a topology: a name of `NAMES`, ``TREE(0, 0, 1)``, or a tree.

        =========================  ===========================================================
        ``STAR``                   all ranks below rank 0
        ``MULTI_STAR``             a star around each rank; the name of an array selects the first
        ``CLIQUE``                 a star around each rank; chunk 0 uses that of rank 0
        ``RING``                   a chain to each rank, and on around the ring
        ``BINARY_TREE``            a binary tree of all ranks, by number
        ``BINARY_TREE_STAR``       a star inside each host, a binary tree between their first ranks
        ``MULTI_BINARY_TREE_STAR`` the same, with every host and every rank of it first in turn
        ``AUTO``                   ``STAR`` on one host, else ``BINARY_TREE_STAR``
        =========================  ===========================================================

        ConfigError for any other text, or an array that `check_tree` refuses.
        """
        if not isinstance(topology, str):
            return self._of_tree(topology)
        if found := _TREE.fullmatch(topology.strip()):
            return self._of_tree([int(parent) for parent in found[1].split(",") if parent.strip()])
        name, n = topology.strip().upper(), self.size
        if name not in NAMES:
            raise ConfigError(
                f"there is no topology {topology!r}",
                hint=f"use {', '.join(NAMES)}, TREE(0, 0, 1) or an array of parents",
            )
        if name == "AUTO":
            name = "STAR" if len(self.teams) == 1 else "BINARY_TREE_STAR"
        if name == "RING":
            ring = [
                Route(
                    tuple(i if i == root else (i + 1) % n for i in range(n)),
                    tuple(i if i == root else (i - 1) % n for i in range(n)),
                )
                for root in range(n)
            ]
            return Routes(name, tuple(ring))
        trees = {
            "STAR": lambda: [(0,) * n],
            "MULTI_STAR": lambda: [(root,) * n for root in range(n)],
            "CLIQUE": lambda: [(root,) * n for root in range(n)],
            "BINARY_TREE": lambda: [_binary(range(n), n)],
            "BINARY_TREE_STAR": lambda: [self._binary_star(0)],
            "MULTI_BINARY_TREE_STAR": lambda: [self._binary_star(turn) for turn in range(n)],
        }[name]()
        every = tuple(Route(tree, tree) for tree in dict.fromkeys(trees))
        return Routes(name, every, by_hash=name == "MULTI_STAR")

    def _of_tree(self, parents: Sequence[int]) -> Routes:
        tree = check_tree(parents, self.size)
        return Routes(f"TREE({', '.join(map(str, tree))})", (Route(tree, tree),))

    def _binary_star(self, turn: int) -> Tree:
        """Return the tree with host `turn` at the top and rank `turn` of each host as its first."""
        teams = self.teams
        leaders = [
            team[turn % len(team)]
            for team in (teams[(turn + i) % len(teams)] for i in range(len(teams)))
        ]
        tree = list(_binary(leaders, self.size))
        for team in teams:
            (leader,) = set(team) & set(leaders)
            for rank in team:
                tree[rank] = tree[rank] if rank == leader else leader
        return tuple(tree)


def _binary(ranks: Sequence[int], size: int) -> Tree:
    """Return a binary tree of `ranks`, the first at the top; the others are their own parents."""
    tree = list(range(size))
    for i, rank in enumerate(ranks[1:], start=1):
        tree[rank] = ranks[(i - 1) // 2]
    return tuple(tree)


def binomial(rank: int, root: int, size: int) -> tuple[int | None, Tree]:
    """Return the parent and the children of a rank in a binomial tree, largest subtrees first.

    The root has no parent. A broadcast takes log2 `size` steps.
    """
    distance, parent, below = (rank - root) % size, None, []
    for step in (1 << i for i in reversed(range((size - 1).bit_length()))):
        if distance % (2 * step) == step:
            parent = (rank - step) % size
        elif distance % (2 * step) == 0 and distance + step < size:
            below.append((rank + step) % size)
    return parent, tuple(below)


def children(tree: Tree, rank: int) -> Tree:
    """Return the children of `rank`, in the order of ranks."""
    return tuple(r for r, parent in enumerate(tree) if parent == rank and r != rank)


def check_tree(parents: Sequence[int], size: int) -> Tree:
    """Return an array of `size` parents as a tree.

    ConfigError if its length differs, if a parent is no rank, if it has two roots, or a cycle.
    """
    array = np.asarray(parents)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise _no_tree(f"an array of {array.dtype} of shape {array.shape} is no tree")
    tree = tuple(int(parent) for parent in array)
    if len(tree) != size:
        raise _no_tree(f"a tree of {len(tree)} ranks does not fit {size} ranks")
    for rank, parent in enumerate(tree):
        if not 0 <= parent < size:
            raise _no_tree(f"the parent of rank {rank} is {parent}, but ranks are 0 to {size - 1}")
    roots = [rank for rank, parent in enumerate(tree) if rank == parent]
    if len(roots) > 1:
        raise _no_tree(f"ranks {roots[0]} and {roots[1]} are both roots of {list(tree)}")
    for start in range(size):
        path = [start]
        while tree[path[-1]] not in path:
            path.append(tree[path[-1]])
        rank, parent = path[-1], tree[path[-1]]
        if rank != parent:
            raise _no_tree(
                f"ranks {rank} and {parent} of {list(tree)} are in a cycle: the parent of rank "
                f"{rank} is {parent}, which is below it"
            )
    return tree


def _no_tree(what: str) -> ConfigError:
    return ConfigError(
        what, hint="give the parent of each rank; one rank, the root, is its own parent"
    )


def rerooted(tree: Tree, root: int) -> Tree:
    """Return the tree with the same edges and the root `root`."""
    found, child, rank = list(tree), root, root
    while True:  # turn the edges between `root` and the old root round
        found[rank], child, parent = child, rank, tree[rank]
        if parent == rank:
            return tuple(found)
        rank = parent


def minimum_spanning_tree(weights: NDArray[Any]) -> Tree:
    """Return the tree of the smallest total weight, with root 0, by Prim's algorithm.

    weights: float[K, K], such as latencies that all ranks measured and gathered, or the reciprocals
    of rates; both directions of an edge count half, and the diagonal nothing. Among equal edges the
    one with the smaller rank in the tree comes first, then the one with the smaller new rank: ranks
    that compute it from the same matrix get the same tree. Infinite weights are allowed.
    ConfigError for another shape, and for NaN.
    """
    found = np.asarray(weights, np.float64)
    size = len(found) if found.ndim else 0
    if found.shape != (size, size) or not size:
        raise ConfigError(
            f"weights of shape {found.shape} are no square matrix",
            hint="gather one row of each rank, as Rates.latency_matrix does",
        )
    if np.isnan(found).any():
        i, j = (int(x) for x in np.argwhere(np.isnan(found))[0])
        raise ConfigError(
            f"the weight of the edge from rank {i} to rank {j} is NaN",
            hint="use inf where ranks do not reach each other",
        )
    both = found / 2 + found.T / 2
    tree = [0] * size
    inside, outside = [0], set(range(1, size))
    while outside:
        _, parent, child = min((both[i, j], i, j) for i in inside for j in outside)
        tree[child] = parent
        inside.append(child)
        outside.remove(child)
    return tuple(tree)
