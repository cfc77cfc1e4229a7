"""The weight of a batch in the mean over an evaluation: the number of terms of its mean loss."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import ops

GRAPHS, VERTICES = 2, 5
MASS = np.array([0.5, 2.0, 0.0, 1.0, 1.5])


class Model(cavs.Model):
    def __init__(self, of):
        self.of, self.scale = of, cavs.Parameter(1, init=3.0)

    def loss(self, batch):
        return self.of(self, batch["x"], batch["mass"])


def weight(of):
    rng = np.random.default_rng(0)
    rows = iter((MASS[:3], MASS[3:]))
    graphs = [
        cavs.Graph.chain(n, features={"x": rng.random(n), "mass": next(rows)}) for n in (3, 2)
    ]
    return cavs.Session(Model(of), dtype=np.float64).evaluate(cavs.batch(graphs)).weight


MEANS = {
    "rows": (lambda m, x, mass: ops.mean_rows(x), VERTICES),
    "a multiple": (lambda m, x, mass: m.scale.sum() * ops.mean_rows(x) / 2.0, VERTICES),
    "a penalty": (lambda m, x, mass: ops.mean_rows(x) + m.scale.sum() * m.scale.sum(), VERTICES),
    "two means over as many": (lambda m, x, mass: ops.mean_rows(x) - ops.mean_rows(mass), VERTICES),
    "weights": (lambda m, x, mass: ops.mean_rows(x, weight=mass), MASS.sum()),
}
OTHERS = {
    "a sum": lambda m, x, mass: ops.sum_rows(x),
    "over a parameter": lambda m, x, mass: ops.sum_rows(x) / ops.maximum(m.scale.sum(), 2.0),
    "over the larger of two": lambda m, x, mass: (
        ops.sum_rows(x) / ops.maximum(ops.sum_rows(mass), m.scale.sum())
    ),
    "over a sum of at least 2": lambda m, x, mass: (
        ops.sum_rows(x) / ops.maximum(ops.sum_rows(mass), 2.0)
    ),
    "over a sum of data": lambda m, x, mass: ops.sum_rows(x) / ops.maximum(ops.sum_rows(mass), 1.0),
    "means over others": lambda m, x, mass: ops.mean_rows(x) + ops.mean_rows(x, weight=mass),
}


@pytest.mark.parametrize("case", MEANS)
def test_a_mean_weighs_as_many_as_its_terms(case):
    of, terms = MEANS[case]
    assert weight(of) == pytest.approx(terms, rel=1e-12)


@pytest.mark.parametrize("case", OTHERS)
def test_other_losses_weigh_by_graphs(case):
    assert weight(OTHERS[case]) == GRAPHS
