"""Values written over dead ones, and values that are recomputed for a sum after a loop."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from tests.oracle import agrees, drawn
from tests.runtime.trees import Classifier, graph, treebank


def checked(model, batch, **switches):
    """Return the session of a model that agrees with the oracle."""
    return agrees(drawn(model, 0.7), batch, passes=Passes(**switches))[0]


def test_gates_are_written_over_the_product_of_the_input():
    rng = np.random.default_rng(0)
    chains = [[[], *([i] for i in range(n - 1))] for n in (3, 9, 5)]
    batch = cavs.batch([graph(c, rng, absent=lambda kids: False) for c in chains])
    session = checked(Classifier(nn.LSTM(8, 6)), batch)
    program = session.compiled(batch).program
    (wide,) = [b for b in program.buffers if b.role == "arena" and b.width == 24]
    assert wide.name.startswith("matmul") and wide.name.count(" > sigmoid") >= 3
    assert wide.first == 0 and wide.last == len(program.stages) - 1


class NextToGathered(cavs.VertexFunction):
    """Columns of a product are written in a buffer of which others are gathered."""

    def __init__(self):
        self.state = cavs.State(h=8)
        self.U = cavs.Parameter((16, 16))
        self.V, self.A = cavs.Parameter((8, 16)), cavs.Parameter((8, 8))

    def vertex(self, v):
        x, a, b = v.pull("x"), v.gather(0).h, v.gather(1).h
        z = ops.tanh(ops.concat([a, b]) @ self.U + x @ self.V)
        t = ops.tanh(x @ self.A)
        v.scatter(h=t + z[0:8] + a * b)
        v.push(t)


def test_columns_next_to_gathered_ones():
    rng = np.random.default_rng(0)
    shapes = [[[], [], [0, 1], [], [3, 2]], [[]], [[], [0, 0]]]
    batch = cavs.batch([graph(s, rng, absent=lambda kids: False) for s in shapes])
    checked(Classifier(NextToGathered(), 8), batch)


class OfOneNumber(cavs.VertexFunction):
    """``n`` is one number times a parameter; a sum after the loops reads it, and so does n + 1."""

    def __init__(self):
        self.state = cavs.State(h=8)
        self.w, self.q = cavs.Parameter((8, 1)), cavs.Parameter(8, init="uniform")
        self.W, self.V = cavs.Parameter((8, 8)), cavs.Parameter((8, 8))

    def vertex(self, v):
        n = ops.sigmoid(v.gather().h.sum() @ self.w) * self.q
        h = (n + 1.0) * ops.tanh(n @ self.W + v.pull("x") @ self.V)
        v.scatter(h=h)
        v.push(h)


@pytest.mark.parametrize("switched", [None, "fuse", "specialise", "plan_memory", "hoist_lazy"])
def test_a_value_recomputed_for_a_sum_is_not_read_before(switched):
    switches = {} if switched is None else {switched: False}
    session = checked(Classifier(OfOneNumber(), 8), treebank(40), **switches)
    if switched is None:  # n is computed in the loop and again after it
        program = session.compiled(treebank(40)).program
        sums = [i for i in program.instructions if i.label == "gradient tree.W"]
        made = [program.buffers[o.buffer] for i in sums for o in i.inputs[: i.split]]
        assert any(" > mul" in b.name for b in made)  # over a value that is dead
