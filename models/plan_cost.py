"""Times of query plans: a network for each operator, on recorded plans of PostgreSQL.

    cavs train plan-cost [--data DIR]

A sample is a plan: a tree of operators with the planner's estimates. The unit of an operator reads
its estimates and the outputs of the units below, and its first output is the time of the plan up
to there (Marcus and Papaemmanouil 2019). The recording that comes with the model was made by
`models.data.record_plans`; DIR holds another one, plans.json.gz. `cavs predict` reads what EXPLAIN
(FORMAT JSON) prints. The q-error of a plan is its time over the predicted one, or the reverse. Its
median is 1.64 by the defaults, and 3.97 for "planner", a line fitted to the planner's own costs.
"""

from __future__ import annotations

import functools

import numpy as np

import cavs
from cavs import nn, ops
from cavs.cli import Task, data_file
from cavs.errors import DataError
from cavs.train import metrics

from .data.plans import ESTIMATES, OPERATORS, RECORDING, plan_graphs, read_plans

DEFAULTS = {"epochs": 40, "batch_size": 32, "lr": 0.001, "optimizer": "adam", "schedule": "cosine"}
UNITS = {name: (arity, len(ESTIMATES)) for name, arity in OPERATORS.items()}


class Units(cavs.VertexFunction):
    """A unit of two layers for each operator, given by its arity and its number of features.

    The arity None is any number of children, whose outputs are added.
    """

    def __init__(self, units, hidden: int, inner: int = 128):
        self.state = cavs.State(h=hidden)
        self.arities = {name: arity for name, (arity, _) in units.items()}
        self.inner, self.outer = [], []
        for arity, features in units.values():
            inputs = features + (1 if arity is None else arity) * hidden
            self.inner.append(nn.Linear(inputs, inner))
            self.outer.append(nn.Linear(inner, hidden))

    def run(self, v):
        """Read the features and the children; the first output is pushed."""
        arity, number = self.arities[v.type], list(self.arities).index(v.type)
        below = [v.gather(k).h for k in range(arity or 0)]
        below += [v.gather().h.sum()] if arity is None else []
        inner = ops.relu(self.inner[number](ops.concat([v.pull("features"), *below])))
        h = ops.relu(self.outer[number](inner))
        v.scatter(h=h)
        v.push(h[0:1])


class PostgresUnits(Units):
    """A unit for each operator of PostgreSQL."""

    @cavs.vertex(*UNITS)
    def unit(self, v):
        """See `Units`."""
        self.run(v)


class PlanCost(cavs.Model):
    """Predict log(1 + microseconds) of each operator with those below."""

    def __init__(self, hidden: int):
        self.units = PostgresUnits(UNITS, hidden)

    def forward(self, batch):
        """Return the predicted logarithms, one row per operator."""
        return self.units(batch.graph, features=batch["estimates"])

    def loss(self, batch):
        """Return the mean squared error over operators; one that never ran adds zero."""
        error = self.forward(batch) - batch["time"]
        return ops.mean_squared_error(error * batch["ran"], 0.0)


def add_arguments(parser):
    """Add the options of this model."""
    parser.add_argument("--hidden-size", type=int, default=32, help="outputs of a unit")


def roots(batch):
    """Return the roots of plans that ran."""
    found = metrics.batch_roots(batch)
    return found[batch["ran"][found, 0] > 0]


def q_errors(line):
    """Return the median q-error of the model, and of a line over the logarithm of the cost."""

    def of_model(outputs, batch):
        at = roots(batch)
        return (outputs["output"] - batch["time"])[at, 0]

    def of_planner(outputs, batch):
        at = roots(batch)
        return np.polyval(line, batch["estimates"][at, -1]) - batch["time"][at, 0]

    def median(rows):
        return float(np.exp(np.median(np.abs(rows))))

    measures = {"q-error": of_model, "planner": of_planner}
    return [metrics.DataSetMetric(n, f, median, "lower") for n, f in measures.items()]


def build(args, assets=None):
    """Return the model and the plans, a tenth of them for dev and for test each."""

    @functools.cache
    def plans():
        name = RECORDING.name
        found = read_plans(data_file(args.data, name, name) if args.data else RECORDING)
        if len(found) < 10:
            raise DataError(f"{args.data}/{name} has {len(found)} plans, expected at least 10")
        return found

    parts = {"train": range(2, 10), "dev": (0,), "test": (1,)}

    def part(name):
        return [plan for i, plan in enumerate(plans()) if i % 10 in parts[name]]

    def predict(outputs, batch):
        times = np.expm1(outputs["output"][metrics.batch_roots(batch), 0]) / 1000
        return (f"{time:.3f} ms" for time in times)

    model = PlanCost(args.hidden_size)
    model.initialize(args.seed)
    if assets is None:
        ends = [(p.features["estimates"][-1, -1], p.features["time"][-1, 0]) for p in part("train")]
        line = np.polyfit(*np.transpose(ends), 1).tolist()
        # Units begin at the mean: an output that is zero at all plans would never learn.
        mean = np.mean(np.concatenate([p.features["time"] for p in part("train")]))
        for unit in model.units.outer:
            unit.bias.value[0] = mean
    else:
        line = assets["line"]
    return Task(
        model,
        **{name: functools.partial(part, name) for name in parts},
        metrics=q_errors(line),
        monitor="q-error",
        assets={"line": line},
        predict=predict,
        read=lambda text: plan_graphs(text, "<text>", timed=False),
    )
