"""The network of query plans in PyTorch: by recursion, and grouped by hand.

`benchmarks.plan_cost` calls `runners`; `benchmarks.models` runs the program grouped by hand on
plans of PostgreSQL, some of whose operators add up the outputs of any number of children.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.torch_pass import torch_pass


class Unit(torch.nn.Module):
    """The two layers of an operator."""

    def __init__(self, of: Mapping[str, torch.Tensor], number: int) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(*of[f"units.inner.{number}.weight"].shape)
        self.outer = torch.nn.Linear(*of[f"units.outer.{number}.weight"].shape)
        with torch.no_grad():
            for name, layer in (("inner", self.inner), ("outer", self.outer)):
                layer.weight.copy_(of[f"units.{name}.{number}.weight"].T)
                layer.bias.copy_(of[f"units.{name}.{number}.bias"])

    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        """Return the outputs for features and children."""
        return F.relu(self.outer(F.relu(self.inner(torch.cat(parts, -1)))))


@dataclass(frozen=True)
class Group:
    """The operators of one kind in one level of a batch.

    children: for each position, rows among the outputs of the levels below; those of all children
    where their outputs are added, then with the operator of each.
    """

    number: int
    features: torch.Tensor
    children: list[torch.Tensor]
    parents: torch.Tensor | None = None

    def read(self, below: torch.Tensor | None, hidden: int) -> list[torch.Tensor]:
        """Return the outputs of the children, as the unit reads them."""
        rows = [] if below is None else [below[rows] for rows in self.children]
        if self.parents is None:
            return rows
        zeros = torch.zeros(len(self.features), hidden)
        return [zeros.index_add(0, self.parents, rows[0]) if rows else zeros]


@dataclass(frozen=True)
class Grouped:
    """A batch: the groups of each level, and the costs in the order of the outputs.

    weights: factors of the outputs and of the costs, where some count as zero.
    """

    levels: list[list[Group]]
    costs: torch.Tensor
    weights: torch.Tensor | None = None


def grouped(plans: Sequence[Any], names: Sequence[str], summed: Sequence[str] = ()) -> Grouped:
    """Return a batch, whose operators are numbered in the order in which they run.

    summed: the names of operators that add up the outputs of their children.
    """
    by_group: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for p, plan in enumerate(plans):
        level: list[int] = []
        for v, below in enumerate(plan.children):
            level.append(1 + max((level[c] for c in below), default=-1))
            by_group.setdefault((level[v], names.index(plan.operators[v])), []).append((p, v))
    row: dict[tuple[int, int], int] = {}
    levels: list[list[Group]] = []
    for (depth, number), members in sorted(by_group.items()):
        row.update({key: len(row) + i for i, key in enumerate(members)})
        if depth == len(levels):
            levels.append([])
        below = [[row[p, c] for c in plans[p].children[v]] for p, v in members]
        features = torch.from_numpy(np.stack([plans[p].rows[v] for p, v in members]))
        parents = None
        if names[number] in summed:
            parents = torch.tensor([i for i, rows in enumerate(below) for _ in rows])
            children = [torch.tensor([i for rows in below for i in rows], dtype=torch.long)]
        else:
            children = list(torch.tensor(below, dtype=torch.long).T) if below[0] else []
        levels[-1].append(Group(number, features, children, parents))
    costs = torch.tensor([plans[p].costs[v] for p, v in row])
    if not summed:
        return Grouped(levels, costs)
    return Grouped(levels, costs, torch.tensor([plans[p].ran[v] for p, v in row]))


class Network(torch.nn.Module):
    """All units."""

    def __init__(self, parameters: Mapping[str, Any], names: Sequence[str]) -> None:
        super().__init__()
        of = {name: torch.from_numpy(np.array(value)) for name, value in parameters.items()}
        self.names = list(names)
        self.hidden = len(of["units.outer.0.bias"])
        self.units = torch.nn.ModuleList(Unit(of, i) for i in range(len(names)))

    def recursive(self, plans: Sequence[Any]) -> torch.Tensor:
        """Return the loss of plans, one operator at a time."""
        found, costs = [], []

        def run(plan: Any, v: int) -> torch.Tensor:
            below = [run(plan, c) for c in plan.children[v]]
            unit = self.units[self.names.index(plan.operators[v])]
            h: torch.Tensor = unit(torch.from_numpy(plan.rows[v]), *below)
            found.append(h[0])
            costs.append(plan.costs[v])
            return h

        for plan in plans:
            run(plan, len(plan.operators) - 1)
        return F.mse_loss(torch.stack(found), torch.tensor(np.array(costs)))

    def grouped(self, batch: Grouped) -> torch.Tensor:
        """Return the loss of a batch, each unit once for a level."""
        outputs: list[torch.Tensor] = []
        for groups in batch.levels:
            below = torch.cat(outputs) if outputs else None
            for group in groups:
                children = group.read(below, self.hidden)
                outputs.append(self.units[group.number](group.features, *children))
        costs = torch.cat(outputs)[:, 0]
        return F.mse_loss(costs if batch.weights is None else costs * batch.weights, batch.costs)

    def forward(self, batch: Grouped) -> torch.Tensor:
        """Return the loss of a batch."""
        return self.grouped(batch)


def runners(
    parameters: Mapping[str, Any],
    batches: Sequence[Sequence[Any]],
    operators: Mapping[str, Any],
    threads: int,
    lr: float,
) -> dict[str, Callable[[], float]]:
    """Return, by name, a function that trains on all batches and returns the last loss."""
    given = {"threads": threads, "lr": lr, "training": True}
    values = {name: p.value for name, p in parameters.items()}
    one, other = (Network(values, list(operators)) for _ in range(2))
    plans = [grouped(batch, list(operators)) for batch in batches]
    return {
        "recursion": torch_pass(one, batches, given, one.recursive),
        "grouped": torch_pass(other, plans, given),
    }


@dataclass(frozen=True)
class RecordedPlan:
    """A plan of PostgreSQL. ran: 0 for each operator that never ran, whose cost is 0."""

    operators: list[str]
    children: list[list[int]]
    rows: npt.NDArray[np.float32]
    costs: list[float]
    ran: list[float]


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return the pass over all batches of recorded plans."""
    names, summed = given["batches"]["operators"], given["batches"]["summed"]

    def plan(operators: Any, children: Any, rows: Any, costs: Any, ran: Any) -> RecordedPlan:
        return RecordedPlan(operators, children, np.array(rows, np.float32), costs, ran)

    batches = [[plan(*each) for each in plans] for plans in given["batches"]["plans"]]
    prepared = [grouped(plans, names, summed) for plans in batches]
    return torch_pass(Network(values, names), prepared, given)


def main() -> None:
    serve(prepare)
