"""A network for each operator of query plans against PyTorch, by recursion and grouped by hand.

Plans are drawn: trees of eight operators, each with features of its own (after Marcus and
Papaemmanouil 2019). A unit reads the features of its operator and the outputs of the units below,
and its first output is the cost of the plan up to there. In `cavs` operators are types of
vertices. The recursion calls the units plan by plan; the other program runs, level by level, each
unit once over all operators of its kind, by indices prepared before the steps. All train from the
same parameters on the same batches in turns; first their losses are compared.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

import cavs
from benchmarks.bounds import report_turns
from benchmarks.options import at_least
from benchmarks.ratios import Pass, take_turns, timed
from benchmarks.result_paths import GridParser
from cavs import ops
from models.plan_cost import Units

# The number of children and of features of each operator.
OPERATORS = {
    "scan": (0, 12),
    "index_scan": (0, 16),
    "filter": (1, 6),
    "sort": (1, 8),
    "hash": (1, 4),
    "aggregate": (1, 10),
    "hash_join": (2, 9),
    "merge_join": (2, 9),
}
LEAST = {"recursion": 5.0, "grouped": 2.0}  # times as fast as these
TOLERANCE = 1e-4  # relative difference allowed between losses after the first pass
LR = 0.01
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Plan:
    """A plan. children: of each operator, before it. rows: its features. costs: one for each."""

    operators: list[str]
    children: list[list[int]]
    rows: list[Floats]
    costs: Floats


def draw(rng: np.random.Generator, joins: int) -> Plan:
    """Return a plan with so many joins, each of whose inputs passes up to three operators."""
    operators, children = list[str](), list[list[int]]()

    def add(arity: int, *below: int) -> int:
        names = [name for name, (count, _) in OPERATORS.items() if count == arity]
        operators.append(names[int(rng.integers(len(names)))])
        children.append(list(below))
        return len(operators) - 1

    def piped(top: int) -> int:
        for _ in range(int(rng.integers(0, 4))):
            top = add(1, top)
        return top

    inputs = [piped(add(0)) for _ in range(joins + 1)]
    while len(inputs) > 1:
        i = int(rng.integers(len(inputs) - 1))
        inputs[i : i + 2] = [piped(add(2, inputs[i], inputs[i + 1]))]
    rows = [rng.normal(size=OPERATORS[name][1]).astype(np.float32) for name in operators]
    return Plan(operators, children, rows, rng.normal(size=len(operators)).astype(np.float32))


class DrawnUnits(Units):
    """A unit for each operator of drawn plans."""

    @cavs.vertex(*OPERATORS)
    def unit(self, v: Any) -> None:
        """See `Units`."""
        self.run(v)


class PlanCost(cavs.Model):
    """The mean squared error of the costs of all operators."""

    def __init__(self, hidden: int) -> None:
        self.units = DrawnUnits(OPERATORS, hidden)

    def loss(self, batch: Any) -> Any:
        """Return the mean over the operators of the batch."""
        features = {name: batch[name] for name in OPERATORS}
        return ops.mean_squared_error(self.units(batch.graph, **features), batch["cost"])


def graph(plan: Plan) -> cavs.Graph:
    """Return a plan as a graph with types."""
    of_types = {}
    for name in dict.fromkeys(plan.operators):
        own = [x for x, other in zip(plan.rows, plan.operators, strict=True) if other == name]
        of_types[name] = {"features": np.stack(own)}
    return cavs.Graph(
        plan.children, {"cost": plan.costs[:, None], **of_types}, types=plan.operators
    )


def runners(batches: Sequence[Sequence[Plan]], hidden: int, threads: int) -> dict[str, Pass]:
    """Return the training on all batches by each runner, from the same parameters."""
    from benchmarks.rivals import plan_cost_torch

    model = PlanCost(hidden)
    model.initialize(0)
    found = plan_cost_torch.runners(model.parameters(), batches, OPERATORS, threads, LR)
    session = cavs.Session(model, threads=threads)
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=LR), session=session)
    graphs = [[graph(plan) for plan in plans] for plans in batches]
    # Batches are collated within the steps, while the rivals' are prepared before.
    own = lambda: [float(trainer.step(cavs.batch(batch))) for batch in graphs][-1]  # noqa: E731
    return {name: timed(train) for name, train in {"cavs": own, **found}.items()}


def measure(hidden: int, given: Any) -> dict[str, Any]:
    """Return times of passes over the batches, by runner, and their ratio to cavs."""
    rng = np.random.default_rng(0)
    batches = [
        [draw(rng, int(rng.integers(1, 8))) for _ in range(given.batch_size)]
        for _ in range(given.batches)
    ]
    turns = take_turns(runners(batches, hidden, given.threads), given.rounds, TOLERANCE)
    return {"hidden": hidden, "plans": given.batch_size * given.batches, **turns}


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("plan_cost", __doc__ or "")
    add = parser.add_argument
    add("--hidden", type=at_least(1), nargs="+", default=[32], help="outputs of a unit")
    add("--batch-size", type=at_least(1), default=32, help="plans")
    add("--batches", type=at_least(1), default=8)
    add("--threads", type=at_least(1), default=2)
    add("--rounds", type=at_least(1), default=11)
    given = parser.parse_args(arguments)
    if find_spec("torch") is None:
        print('the rivals need PyTorch: pip install "torch==2.13.0"', file=sys.stderr)
        return 2
    cases = [measure(hidden, given) for hidden in given.hidden]
    return report_turns(given, cases, LEAST, "h", "plans")


if __name__ == "__main__":
    raise SystemExit(main())
