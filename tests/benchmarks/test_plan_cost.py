"""The network of query plans equals one in NumPy that runs operator by operator."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from benchmarks.plan_cost import OPERATORS, PlanCost, draw, graph


def loss_of(p, plans):
    """Return the mean squared error of the costs of all operators."""
    errors = []
    for plan in plans:
        h = []
        for name, below, row, cost in zip(
            plan.operators, plan.children, plan.rows, plan.costs, strict=True
        ):
            x = np.concatenate([row, *(h[c] for c in below)])
            for layer in ("inner", "outer"):
                of = f"units.{layer}.{list(OPERATORS).index(name)}"
                x = np.maximum(x @ p[f"{of}.weight"] + p[f"{of}.bias"], 0)
            h.append(x)
            errors.append((x[0] - cost) ** 2)
    return np.mean(errors)


def test_loss_equals_the_reference_and_falls():
    rng = np.random.default_rng(0)
    plans = [draw(rng, joins) for joins in (0, 1, 5, 9)]
    assert {name for plan in plans for name in plan.operators} == set(OPERATORS)
    model = PlanCost(3)
    model.initialize(0)
    session = cavs.Session(model, dtype=np.float64)
    batch = cavs.batch([graph(plan) for plan in plans])
    p = {name: x.value.astype(float) for name, x in model.parameters().items()}
    before = session.evaluate(batch).loss
    assert before == pytest.approx(loss_of(p, plans), rel=1e-12)
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=0.05), session=session)
    for _ in range(5):
        trainer.step(batch)
    assert session.evaluate(batch).loss < before
