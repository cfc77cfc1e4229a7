"""The network over clustering trees in PyTorch, batched by hand: all pairs of a level at once.

The embeddings of all vertices are one product, and so are their parts of the states of pairs. Each
state is copied once, by a concatenation of the rows that the next level reads, and looked up as
(first, second) part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.torch_pass import torch_pass
from benchmarks.rivals.tree_plan import plan_trees
from benchmarks.samples import Tree


@dataclass(frozen=True)
class Batch:
    """A batch, whose rows are sorted by level and by the level of the parent.

    counts: rows of each level. splits: of each level, the sizes of the chunks that later levels
    read, roots first. pieces: for each inner level, the (level, chunk) pairs that it reads.
    lookup: for each inner level, rows of these pieces as first, second, first, ... roots: the
    levels whose first chunk is of roots.
    """

    momenta: Tensor
    counts: list[int]
    splits: list[list[int]]
    pieces: list[list[tuple[int, int]]]
    lookup: list[Tensor]
    roots: list[int]
    labels: Tensor


def as_tree(jet: Any) -> Tree:
    """Return a jet as a tree whose root alone has a label."""
    pairs = [below or [-1, -1] for below in jet["children"]]
    height = list[int]()
    for below in jet["children"]:
        height.append(1 + max((height[child] for child in below), default=-1))
    label = [-1] * (len(pairs) - 1) + [jet["label"]]
    left, right = np.array(pairs, np.int32).T
    return Tree(left, right, *(np.array(x, np.int32) for x in (height, label, height)))


def prepare_batch(jets: Sequence[Any]) -> Batch:
    """Return the indices of a batch."""
    rows = plan_trees([as_tree(jet) for jet in jets])
    levels = len(rows.level_rows) - 1
    splits, pieces = list[list[int]](), [list[tuple[int, int]]() for _ in range(levels)]
    roots = list[int]()
    for level in range(levels):
        targets = np.flatnonzero(rows.consumed[level]).tolist()
        splits.append([int(rows.consumed[level, target]) for target in targets])
        for chunk, target in enumerate(targets):
            if target:
                pieces[target].append((level, chunk))
            else:
                roots.append(level)
    counts = np.diff(rows.level_rows)
    lookup = torch.from_numpy(rows.pool_position[rows.child].ravel())
    momenta = np.concatenate([np.array(jet["momentum"], np.float32) for jet in jets])
    return Batch(
        torch.from_numpy(momenta[rows.vertex]),
        counts.tolist(),
        splits,
        pieces[1:],
        list(lookup.split((2 * counts[1:]).tolist())),
        roots,
        torch.from_numpy(rows.label[rows.label >= 0]),
    )


class Layer(torch.nn.Module):
    """x W + b."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(x.clone()) for x in (weight, bias))

    def forward(self, x: Tensor) -> Tensor:
        """Return one row for each of x."""
        return torch.addmm(self.bias, x, self.weight)


class Network(torch.nn.Module):
    """The layers of the cell and of the classifier."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        p = {name: torch.from_numpy(value) for name, value in values.items()}
        size = p["hidden.weight"].shape[0]
        joined = p["tree.joined.weight"]
        self.embedding = Layer(p["tree.embedding.weight"], p["tree.embedding.bias"])
        self.own = Layer(joined[2 * size :], p["tree.joined.bias"])
        self.parts = torch.nn.Parameter(joined[: 2 * size].clone())
        self.hidden = Layer(p["hidden.weight"], p["hidden.bias"])
        self.output = Layer(p["output.weight"], p["output.bias"])

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        leaves = batch.counts[0]
        embedded = F.relu(self.embedding(batch.momenta))
        chunks = [embedded[:leaves].split(batch.splits[0])]
        own = self.own(embedded[leaves:]).split(batch.counts[1:])
        steps = zip(own, batch.pieces, batch.lookup, batch.splits[1:], strict=True)
        for rows, pieces, lookup, split in steps:
            pool = torch.cat([chunks[level][chunk] for level, chunk in pieces])
            parts = F.embedding(lookup, pool).view(rows.shape[0], -1)
            chunks.append(F.relu(torch.addmm(rows, parts, self.parts)).split(split))
        root = torch.cat([chunks[level][0] for level in batch.roots])
        return F.cross_entropy(self.output(F.relu(self.hidden(root))), batch.labels)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return the pass over all batches."""
    return torch_pass(Network(values), [prepare_batch(b) for b in given["batches"]], given)


def main() -> None:
    serve(prepare)
