"""A gradient that is a product over some of its rows and a sum over all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cavs
from cavs import config, nn, ops
from tests.oracle import assert_close, reference

N = 32


class Twice(cavs.VertexFunction):
    """W is the factor of a product and of an elementwise product."""

    def __init__(self) -> None:
        self.state = cavs.State(h=N)
        self.W = cavs.Parameter((2 * N, N))

    def vertex(self, v: Any) -> None:
        x, below = v.pull("x"), v.gather().h.sum()
        t = ops.tanh(self.W * x).sum(-1)
        h = ops.tanh(ops.concat([below, x]) @ self.W)
        h = h + 0.1 * t[0:N] + 0.1 * t[N : 2 * N]
        v.scatter(h=h)
        v.push(h)


class Classifier(cavs.Model):
    def __init__(self) -> None:
        self.cell, self.output = Twice(), nn.Linear(N, 3)

    def loss(self, batch: Any) -> Any:
        return ops.cross_entropy(self.output(self.cell(batch.graph, x=batch["x"])), batch["label"])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("children", [[[]], [[], [], [0, 1]]])
def test_a_product_and_a_sum_into_one_gradient(threads: int, children: list[list[int]]) -> None:
    rng = np.random.default_rng(0)
    n = len(children)

    def graph() -> cavs.Graph:
        x = rng.standard_normal((n, N)).astype(np.float32)
        return cavs.Graph(children, {"x": x, "label": rng.integers(0, 3, n)})

    model, batch = Classifier(), cavs.batch([graph() for _ in range(200 // n)])
    before = config.num_threads()
    cavs.set_num_threads(threads)
    try:
        session = cavs.Session(model, dtype=np.float64)
        _, expected = reference(model, batch)
        for _ in range(4):
            _, gradients = session.gradients(batch)
            for name, g in gradients.items():
                assert_close(g, expected[f"grad:{name}"], 1e-9, name)
    finally:
        cavs.set_num_threads(before)
