"""Statement trees under a chain in PyTorch, batched by hand: level by level, then step by step.

The input layer runs once over all vertices. Levels are counted from the root of each statement, so
that the parents of a level are in the next one, which adds up its children by one `index_add`. The
functions of a batch are sorted by their number of statements; a step of both directions of the
chain is one batched product over the functions that have one more statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rivals.hand_batched import linear, table
from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.torch_pass import torch_pass


@dataclass(frozen=True)
class Batch:
    """A batch, whose vertices are ordered by level, the lowest first.

    counts: vertices of each level. parents: for all levels but the last, the row of the parent of
    each vertex within the next level. tree: the statement of each vertex, of count `statements`.
    steps: the functions that have a k-th statement. order: for both directions, the statement of
    each function at each step. padded: [functions, longest], rows of such steps, or the one after.
    """

    types: Tensor
    names: Tensor
    counts: list[int]
    parents: list[Tensor]
    tree: Tensor
    statements: int
    steps: list[int]
    order: Tensor
    padded: Tensor
    labels: Tensor


def prepare_batch(functions: Sequence[Any]) -> Batch:
    """Return the indices of a batch."""
    functions = sorted(functions, key=lambda function: -len(function["roots"]))
    above, depth, tree = list[int](), list[int](), list[int]()
    lengths = [len(function["roots"]) for function in functions]
    firsts = np.concatenate([[0], np.cumsum(lengths)])
    for function, first in zip(functions, firsts[:-1].tolist(), strict=True):
        count, base = len(function["children"]), len(tree)
        own, parent, level = [0] * count, [-1] * count, [0] * count
        for i, root in enumerate(function["roots"]):
            own[root] = first + i
        for v in reversed(range(count)):  # parents are before their children
            for child in function["children"][v]:
                own[child], parent[child], level[child] = own[v], base + v, level[v] + 1
        above, depth, tree = above + parent, depth + level, tree + own
    levels = max(depth) - np.array(depth)
    order = np.argsort(levels, kind="stable")
    counts = np.bincount(levels)
    row = np.empty(len(order), int)
    row[order] = np.arange(len(order))
    ends = np.cumsum(counts)
    parents = [
        torch.from_numpy(row[np.array(above)[order[end - count : end]]] - end)
        for count, end in zip(counts[:-1], ends[:-1], strict=True)
    ]
    steps = [sum(length > k for length in lengths) for k in range(lengths[0])]
    starts = np.concatenate([[0], np.cumsum(steps)])
    forth = [firsts[i] + k for k, count in enumerate(steps) for i in range(count)]
    back = [firsts[i + 1] - 1 - k for k, count in enumerate(steps) for i in range(count)]
    padded = np.full((len(functions), len(steps)), starts[-1])
    for i, length in enumerate(lengths):
        padded[i, :length] = starts[:length] + i
    kinds, names = (np.concatenate([f[key] for f in functions])[order] for key in ("type", "name"))
    return Batch(
        torch.from_numpy(kinds),
        torch.from_numpy(1 + names),  # row 0 is that of no name
        counts.tolist(),
        parents,
        torch.from_numpy(np.array(tree)[order]),
        sum(lengths),
        steps,
        torch.from_numpy(np.array([forth, back])),
        torch.from_numpy(padded),
        torch.tensor([function["label"] for function in functions]),
    )


class Network(torch.nn.Module):
    """The model with the parameters of the one of cavs, by name."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        of = {name: torch.from_numpy(value) for name, value in values.items()}
        none = torch.zeros(1, values["name.weight"].shape[1])
        of["name.weight"] = torch.cat([none, of["name.weight"]])
        self.kind, self.word = table(of, "type"), table(of, "name")
        self.word.padding_idx = 0
        self.linear, self.output = linear(of, "tree.linear"), linear(of, "output")

        def both(key: str) -> torch.nn.Parameter:
            ways = torch.stack([of[f"chain.{way}.{key}"] for way in ("forth", "back")])
            return torch.nn.Parameter(ways)

        self.W, self.U, self.U_n, self.b = map(both, ("W", "U", "U_n", "b"))

    def trees(self, batch: Batch) -> Tensor:
        """Return the maximum over the states of each statement."""
        x = self.linear(self.kind(batch.types) + self.word(batch.names)).split(batch.counts)
        states = [torch.tanh(x[0])]
        for own, parents in zip(x[1:], batch.parents, strict=True):
            states.append(torch.tanh(own.index_add(0, parents, states[-1])))
        h = torch.cat(states)
        index = batch.tree[:, None].expand(-1, h.shape[1])
        empty = h.new_zeros(batch.statements, h.shape[1])
        return empty.scatter_reduce(0, index, h, "amax", include_self=False)

    def chains(self, rows: Tensor) -> tuple[Any, Any]:
        """Return what the gates and the candidates read of statements, [directions, rows, ...]."""
        size = self.U_n.shape[1]
        return torch.baddbmm(self.b[:, None], rows, self.W).split([2 * size, size], 2)

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        size = self.U_n.shape[1]
        gates, candidates = self.chains(F.embedding(batch.order, self.trees(batch)))
        h, states = gates.new_zeros(2, batch.steps[0], size), []
        parts = zip(gates.split(batch.steps, 1), candidates.split(batch.steps, 1), strict=True)
        for count, (gate, candidate) in zip(batch.steps, parts, strict=True):
            h = h if h.shape[1] == count else h[:, :count]
            r, z = torch.sigmoid(torch.baddbmm(gate, h, self.U)).chunk(2, 2)
            n = torch.tanh(torch.baddbmm(candidate, r * h, self.U_n))
            h = torch.lerp(n, h, z)
            states.append(h)
        # A maximum over all steps does not depend on their order; no state is below -1.
        pool = torch.cat([*states, gates.new_full((2, 1, size), -1.0)], 1)
        most = F.embedding(batch.padded, torch.cat(pool.unbind(0), 1)).amax(1)
        return F.cross_entropy(self.output(most), batch.labels)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return the pass over all batches."""
    return torch_pass(Network(values), [prepare_batch(b) for b in given["batches"]], given)


def main() -> None:
    serve(prepare)
