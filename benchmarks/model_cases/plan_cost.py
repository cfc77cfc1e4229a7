"""The network of query plans, on the recorded plans of PostgreSQL."""

from __future__ import annotations

import numpy as np

from benchmarks.model_case import ModelCase, Sizes, plain_children
from models.data.plans import OPERATORS, RECORDING, read_plans
from models.plan_cost import PlanCost

HIDDEN = 32
REASONS = {
    "training": (
        "the weights of 28 types are updated in each step, and a new batch is checked and "
        "scheduled, for few operators of each type",
        1.2,
    ),
    "inference": ("a new batch of 28 types is checked and scheduled for small products", 1.5),
}


def case(sizes: Sizes) -> ModelCase:
    """Return the model with plans that are drawn from the recording."""
    plans = read_plans(RECORDING)
    rng = np.random.default_rng(0)
    drawn = rng.permutation(len(plans))[: sizes.batches * sizes.batch_size]
    batches = [[plans[i] for i in part] for part in np.array_split(drawn, sizes.batches)]

    def plain(graph):
        features = (graph.features[name] for name in ("estimates", "time", "ran"))
        rows, costs, ran = (values.tolist() for values in features)
        children = plain_children(graph)
        costs, ran = ([x for (x,) in values] for values in (costs, ran))
        return list(graph.types), children, rows, costs, ran

    return ModelCase(
        lambda: PlanCost(HIDDEN),
        batches,
        sum(graph.num_vertices for batch in batches for graph in batch),
        "operators",
        HIDDEN,
        {"torch": "plan_cost_torch", "dynet": "plan_cost_dynet"},
        {
            "operators": list(OPERATORS),
            "summed": [name for name, arity in OPERATORS.items() if arity is None],
            "plans": [[plain(graph) for graph in batch] for batch in batches],
        },
        lr=0.001,
        reasons=REASONS,
    )
