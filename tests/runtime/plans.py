"""A model of query plans with three types of vertices, for tests."""

from __future__ import annotations

import cavs
from cavs import nn, ops


class Plan(cavs.VertexFunction):
    """Scans are leaves, filters read the first child, joins two."""

    def __init__(self, size):
        self.state = cavs.State(h=size)
        self.scan = nn.Linear(2, size)
        self.filter = nn.Linear(size + 1, size)
        self.join = nn.Linear(2 * size, size)

    @cavs.vertex("scan")
    def scan_vertex(self, v):
        self.finish(v, self.scan(v.pull("table")))

    @cavs.vertex("filter")
    def filter_vertex(self, v):
        self.finish(v, self.filter(ops.concat([v.gather(0).h, v.pull("less")])))

    @cavs.vertex("join")
    def join_vertex(self, v):
        self.finish(v, self.join(ops.concat([v.gather(0).h, v.gather(1).h])))

    def finish(self, v, x):
        h = ops.tanh(x)
        v.scatter(h=h)
        v.push(h)


class PlanCost(cavs.Model):
    def __init__(self, size=4):
        self.plan, self.output = Plan(size), nn.Linear(size, 1)

    def forward(self, batch):
        h = self.plan(batch.graph, scan=batch["scan"], filter={"less": batch["filter"]["less"]})
        return self.output(ops.sum_roots(h))

    def loss(self, batch):
        return ops.mean_squared_error(self.forward(batch), batch["cost"])


def plan(children, types, rng, absent=(), **options):
    """Return a plan with drawn features, without those of the ``absent`` types."""
    rows = {
        "scan": {"table": rng.normal(size=(types.count("scan"), 2))},
        "filter": {"less": rng.normal(size=(types.count("filter"), 1))},
    }
    features = {name: group for name, group in rows.items() if name not in absent}
    options = {"graph_features": {"cost": [rng.normal()]}} | options
    return cavs.Graph(children, features, types=types, **options)


def plans(count, rng):
    """Return random trees of scans, filters and joins."""
    found = []
    for _ in range(count):
        children, types = [[]], ["scan"]
        roots = [0]
        for _ in range(int(rng.integers(0, 7))):
            new, choice = len(types), rng.integers(3)
            if choice == 2 and len(roots) > 1:
                children.append([roots.pop(), roots.pop()])
            else:
                children.append([roots.pop()] if choice == 1 else [])
            types.append(("scan", "filter", "join")[0 if not children[-1] else len(children[-1])])
            roots.append(new)
        found.append(plan(children, types, rng))
    return found
