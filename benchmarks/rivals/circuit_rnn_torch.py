"""The network over circuits in PyTorch, batched by hand: all gates of a level in one product.

The matrices of all types are one tensor [types, inputs, outputs]. The gates of a level are padded
to equally many of each type that the level has, and one batched product multiplies each group by
the matrix of its type. The own states of all gates, which do not depend on the loop over levels,
are multiplied before it. The states that a level gathers are summed by an embedding bag.
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


@dataclass(frozen=True)
class Level:
    """The gates of a level, grouped by type and padded to groups of one size.

    types: of the groups. gathered, offsets: for each padded gate, the rows that it gathers among
    those of the levels before.
    """

    types: tuple[int, ...]
    gathered: Tensor
    offsets: Tensor


@dataclass(frozen=True)
class Direction:
    """The levels of a direction.

    own: rows of the padded gates of all levels among all gates sorted by type. counts: padded gates
    of each level. order: the row of each gate among those of all levels.
    """

    levels: list[Level]
    own: Tensor
    counts: list[int]
    order: Tensor


@dataclass(frozen=True)
class Batch:
    """Types and labels of all gates, the gates sorted by type and padded, and both directions."""

    gates: Tensor
    labels: Tensor
    by_type: Tensor
    forth: Direction
    back: Direction


def sorted_by_type(gates: Sequence[int], types: int) -> tuple[list[int], dict[int, int]]:
    """Return gates as rows, as many of each type, and the row of each gate."""
    groups = [[g for g in range(len(gates)) if gates[g] == t] for t in range(types)]
    width = max(len(group) for group in groups)
    rows = [g for group in groups for g in group + [0] * (width - len(group))]
    return rows, {g: t * width + i for t, group in enumerate(groups) for i, g in enumerate(group)}


def direction(
    gates: Sequence[int], sources: Sequence[Sequence[int]], own: dict[int, int]
) -> Direction:
    """Return the levels of gates that gather from `sources`. own: rows of gates by type."""
    level = [-1] * len(gates)

    def find(start: int) -> None:
        waiting = [start]
        while waiting:
            gate = waiting[-1]
            missing = [s for s in sources[gate] if level[s] < 0]
            waiting += missing
            if not missing:
                level[gate] = 1 + max((level[s] for s in sources[gate]), default=-1)
                waiting.pop()

    for gate in range(len(gates)):
        find(gate)
    row, padded, levels, counts = dict[int, int](), list[int](), list[Level](), list[int]()
    for depth in range(max(level) + 1):
        members = [g for g in range(len(gates)) if level[g] == depth]
        types = sorted({gates[g] for g in members})
        groups = [[g for g in members if gates[g] == t] for t in types]
        width = max(len(group) for group in groups)
        gathered, offsets = list[int](), list[int]()
        for group in groups:
            for i in range(width):
                offsets.append(len(gathered))
                gathered += [row[s] for s in sources[group[i]]] if i < len(group) else []
            row.update({g: len(padded) + i for i, g in enumerate(group)})
            padded += group + [group[0]] * (width - len(group))
        counts.append(width * len(groups))
        arrays = (torch.tensor(x).long() for x in (gathered, offsets))
        levels.append(Level(tuple(types), *arrays))
    order = torch.tensor([row[g] for g in range(len(gates))])
    return Direction(levels, torch.tensor([own[g] for g in padded]), counts, order)


def prepare_batch(netlists: Sequence[Any], types: int) -> Batch:
    """Return the indices of a batch. types: the number of types of gates."""
    gates, labels, sources = list[int](), list[float](), list[list[int]]()
    for netlist in netlists:
        sources += [[len(gates) + s for s in below] for below in netlist["sources"]]
        gates += netlist["gates"]
        labels += netlist["label"]
    readers: list[list[int]] = [[] for _ in gates]
    for gate, below in enumerate(sources):
        for source in below:
            readers[source].append(gate)
    rows, own = sorted_by_type(gates, types)
    columns = torch.tensor(gates), torch.tensor(labels)[:, None], torch.tensor(rows)
    return Batch(*columns, direction(gates, sources, own), direction(gates, readers, own))


class Units(torch.nn.Module):
    """The units of all types, whose matrices are split into those of gathered and own states.

    gathered: [types, h, 3 h], for reset, update and candidate. own: [types, h, 2 h], for the gates.
    reset: [types, h, h], from the own state through the reset gate to the candidate.
    """

    def __init__(self, values: Values, name: str) -> None:
        super().__init__()

        def stacked(layer: str, part: str) -> np.ndarray:
            count = sum(f"{name}.{layer}." in key and key.endswith(part) for key in values)
            return np.stack([values[f"{name}.{layer}.{i}.{part}"] for i in range(count)])

        gate, candidate = stacked("gate", "weight"), stacked("candidate", "weight")
        h = self.size = candidate.shape[2]
        bias = np.concatenate([stacked("gate", "bias"), stacked("candidate", "bias")], axis=1)
        gathered = np.concatenate([gate[:, :h], candidate[:, :h]], axis=2)
        parts = {"gathered": gathered, "own": gate[:, h:], "reset": candidate[:, h:], "bias": bias}
        for key, value in parts.items():
            setattr(self, key, torch.nn.Parameter(torch.from_numpy(value.copy())))

    def forward(self, x: Tensor, by_type: Tensor, of: Direction) -> Tensor:
        """Return the new states of all gates from those before."""
        h, found = self.size, list[Tensor]()
        states = F.embedding(by_type, x).view(len(self.own), -1, h)
        # For each gate sorted by type, the own parts of its gates, and the state itself.
        own = torch.cat([torch.bmm(states, self.own), states], 2).view(-1, 3 * h)
        weights = {}
        for types in {level.types for level in of.levels}:
            every = self.bias[:, None], self.gathered, self.reset
            weights[types] = [w.index_select(0, torch.tensor(types)) for w in every]
        rows = F.embedding(of.own, own).split(of.counts)
        for level, parts in zip(of.levels, rows, strict=True):
            bias, of_gathered, of_reset = weights[level.types]
            gates, before = parts.view(len(level.types), -1, 3 * h).split([2 * h, h], 2)
            if len(level.gathered):
                below = torch.cat(found)
                total = F.embedding_bag(level.gathered, below, level.offsets, mode="sum")
                bias = torch.baddbmm(bias, total.view(len(level.types), -1, h), of_gathered)
            rz, n = bias.split([2 * h, h], 2)
            r, z = torch.sigmoid(rz + gates).split(h, 2)
            new = torch.tanh(torch.baddbmm(n, r * before, of_reset))
            found.append(torch.lerp(new, before, z).view(-1, h))
        return F.embedding(of.order, torch.cat(found))


class Network(torch.nn.Module):
    """Both directions, the embedding and the output layers."""

    def __init__(self, values: Values, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.forth, self.back = Units(values, "forth"), Units(values, "back")
        for name in ("embedding", "hidden", "output"):
            for part in ("weight", "bias"):
                if (value := values.get(f"{name}.{part}")) is not None:
                    own = torch.nn.Parameter(torch.from_numpy(value))
                    self.register_parameter(f"{name}_{part}", own)

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        x = F.embedding(batch.gates, self.embedding_weight)
        x = self.forth(x, batch.by_type, batch.forth)
        for _ in range(self.rounds - 1):
            x = self.back(x, batch.by_type, batch.back)
            x = self.forth(x, batch.by_type, batch.forth)
        hidden = F.relu(torch.addmm(self.hidden_bias, x, self.hidden_weight))
        found = torch.sigmoid(torch.addmm(self.output_bias, hidden, self.output_weight))
        return F.l1_loss(found, batch.labels)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return the pass over all batches."""
    network = Network(values, given["batches"]["rounds"])
    types = len(values["embedding.weight"])
    batches = [prepare_batch(netlists, types) for netlists in given["batches"]["netlists"]]
    return torch_pass(network, batches, given)


def main() -> None:
    serve(prepare)
