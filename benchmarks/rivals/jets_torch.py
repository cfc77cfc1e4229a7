"""The network over clustering trees in PyTorch, batched by hand: all pairs of a level at once.

The embeddings of all vertices are one product. Each state is copied once, by a concatenation of
the rows that the next level reads, and looked up as (first, second) part.
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


class Network(torch.nn.Module):
    """The layers of the cell and of the classifier."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        names = ("tree.embedding", "tree.joined", "hidden", "output")
        self.names = [name.replace(".", "_") for name in names]
        for name, own in zip(names, self.names, strict=True):
            for part in ("weight", "bias"):
                value = torch.nn.Parameter(torch.from_numpy(values[f"{name}.{part}"]))
                self.register_parameter(f"{own}_{part}", value)

    def layer(self, number: int, x: Tensor) -> Tensor:
        """Return x W + b of a layer."""
        name = self.names[number]
        return torch.addmm(getattr(self, f"{name}_bias"), x, getattr(self, f"{name}_weight"))

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        own = F.relu(self.layer(0, batch.momenta)).split(batch.counts)
        size = own[0].shape[1]
        chunks = [own[0].split(batch.splits[0])]
        steps = zip(own[1:], batch.pieces, batch.lookup, batch.splits[1:], strict=True)
        for embedded, pieces, lookup, split in steps:
            pool = torch.cat([chunks[level][chunk] for level, chunk in pieces])
            parts = F.embedding(lookup, pool).view(-1, 2 * size)
            h = F.relu(self.layer(1, torch.cat([parts, embedded], 1)))
            chunks.append(h.split(split))
        root = torch.cat([chunks[level][0] for level in batch.roots])
        return F.cross_entropy(self.layer(3, F.relu(self.layer(2, root))), batch.labels)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return the pass over all batches."""
    torch.set_num_threads(given["threads"])
    return torch_pass(Network(values), [prepare_batch(b) for b in given["batches"]], given)


def main() -> None:
    serve(prepare)
