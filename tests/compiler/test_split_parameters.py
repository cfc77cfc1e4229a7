"""A parameter whose parts are used separately has one gradient, composed of theirs."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import ops
from tests.compiler.test_equality import FLOAT64, check
from tests.oracle import reference
from tests.runtime.trees import Classifier, treebank


class Split(cavs.VertexFunction):
    """Weights and bias hold three gates, of which the middle one may be unused."""

    def __init__(self, gates: tuple[int, ...]) -> None:
        self.gates = gates
        self.state = cavs.State(h=4)
        self.W, self.U, self.b = (cavs.Parameter(s) for s in ((5, 12), (4, 12), (12,)))

    def vertex(self, v):
        W, U, b = (ops.split(p, 3) for p in (self.W, self.U, self.b))
        x, before = v.pull("x"), v.gather().h.sum()
        h = ops.tanh(x @ W[0] + before @ U[0] + b[0])
        for i in self.gates:
            h = h * ops.sigmoid(x @ W[i] + before @ U[i] + b[i])
        v.scatter(h=h)
        v.push(h)


@pytest.mark.parametrize("gates", [(1,), (2,), (1, 2)])
def test_parts_of_a_parameter_that_are_used_separately(gates):
    model, batch = Classifier(Split(gates), input_size=5), treebank(3, longest=5)
    model.initialize(1, np.float64)
    _, expected = reference(model, batch)
    _, forward = reference(model, batch, training=False)
    check(cavs.Session(model, dtype=np.float64), batch, expected, forward, FLOAT64)
