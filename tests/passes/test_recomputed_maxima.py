"""The operand of a maximum is found by its bits, so backward reads it and never recomputes it."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import ops
from tests.oracle import agrees, drawn
from tests.runtime.trees import Classifier, graph

SHAPES = [[[], [], [0, 1], [], [3, 2]], [[]], [[], [0, 0]], [[], [], [], [0, 1, 2], [3]]]


class Greatest(cavs.VertexFunction):
    """``p`` is a product that rounds once if fused with the compared sum, and twice if not."""

    def __init__(self, over):
        self.over = over
        self.state = cavs.State(h=8)
        self.U, self.W = cavs.Parameter((8, 16)), cavs.Parameter((8, 8))
        self.a, self.c = (cavs.Parameter(8, init="uniform") for _ in range(2))

    def vertex(self, v):
        x = v.pull("x")
        a, b = ops.split(x @ self.U, 2)
        if self.over == "axis":
            s = v.gather().h.sum()
            p = ops.tanh(a + s) * ops.sigmoid(b + s)
            m = (p + self.c).max(-1, keepdims=True)
        elif self.over == "children":
            child = v.gather().h
            product = ops.tanh(child + a) * ops.sigmoid(child + b)
            m, p = (product + self.c).max(), product.sum()
        if self.over == "mask":
            t = ops.tanh(a + v.gather().h.sum())
            p = t * self.a
            q = p + self.c
            m = ops.stop_gradient(q.max(-1, keepdims=True))
            h = ops.tanh((q >= m) * (t / m) + p)
        elif self.over == "least":
            t = ops.tanh(a + v.gather().h.sum())
            p = t * self.a
            q = p + self.c
            m = ops.stop_gradient(q.min(-1, keepdims=True))
            h = ops.tanh((m >= q) * (t / m) + p)
        else:
            h = (x * m) @ self.W + p
        v.scatter(h=h)
        v.push(h)


@pytest.mark.parametrize("over", ["axis", "children", "mask", "least"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_maximum_is_found_by_its_bits(over, dtype):
    rng = np.random.default_rng(0)
    batch = cavs.batch([graph(s, rng, absent=lambda kids: False) for s in SHAPES * 10])
    model = drawn(Classifier(Greatest(over), 8), 0.7, seed=3)
    agrees(model, batch, 1e-11 if dtype is np.float64 else 2e-5, dtype=dtype)


def test_a_softmax_compares_nothing():
    """Its gradient does not depend on its shift."""
    rng = np.random.default_rng(0)

    class Softmaxes(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=8)
            self.W = cavs.Parameter((8, 8))

        def vertex(self, v):
            child = v.gather().h
            kept = ((child @ self.W).softmax() * child).sum()
            h = ops.softmax(v.pull("x") + kept) + ops.log_softmax(kept)
            v.scatter(h=h)
            v.push(h)

    batch = cavs.batch([graph(s, rng, absent=lambda kids: False) for s in SHAPES])
    model = Classifier(Softmaxes(), 8)
    model.initialize(0, np.float64)
    session, _ = agrees(model, batch)
    program = session.compiled(batch).program
    assert not any(op[0] == "equal" for i in program.instructions for op in i.ops)
