"""Values that are read twice at every step of a long function: many ways lead through few nodes."""

import signal

import numpy as np
import pytest

import cavs
from cavs import ops
from tests.compiler.test_rare_models import checked
from tests.patience import patience

STEPS = {
    "add": lambda g, h, w: g + g,
    "another": lambda g, h, w: g + (g + h),
    "mul": lambda g, h, w: g * g,
    "both": lambda g, h, w: (g + h) * (g + 0.5),
    "greater": lambda g, h, w: ops.maximum(g, g + h),
    "product": lambda g, h, w: (g @ w) + (g @ w) * g,
    "quotient": lambda g, h, w: g / (1.0 + g * g),
    "columns": lambda g, h, w: ops.concat([g[:2] + g[2:], g[2:] * g[:2]]),
    "overlapping": lambda g, h, w: ops.concat([g[:2], g[1:3]]) + ops.concat([g[2:], g[1:3]]),
}


class Repeated(cavs.VertexFunction):
    def __init__(self, step, times):
        self.step, self.times = step, times
        self.matrix = cavs.Parameter((4, 4))
        self.state = cavs.State(h=4)

    def vertex(self, v):
        h = ops.tanh(v.pull("x") @ self.matrix + v.gather().h.sum())
        g = h
        for _ in range(self.times):
            g = self.step(g, h, self.matrix)
        v.scatter(h=ops.tanh(g))
        v.push(ops.tanh(g))


class Labelled(cavs.Model):
    def __init__(self, step, times):
        self.cell = Repeated(step, times)

    def loss(self, batch):
        return ops.cross_entropy(self.cell(batch.graph, x=batch["x"]), batch["label"])


def data():
    rng = np.random.default_rng(0)
    features = {
        "x": rng.normal(size=(4, 4)).astype(np.float32),
        "label": rng.integers(0, 4, 4).astype(np.int32),
    }
    return cavs.batch([cavs.Graph.from_children([[], [], [0, 1], [2]], features=features)])


@pytest.mark.parametrize("name", STEPS)
def test_values_and_gradients_are_those_of_the_oracle(name):
    model = Labelled(STEPS[name], 4)
    model.initialize(1, np.float64)
    checked(model, data())


@pytest.mark.parametrize("name", STEPS)
def test_forty_of_them_compile(name):
    """There are 2^40 ways: what looks at each one does not come to an end."""

    def give_up(*_):
        raise TimeoutError("compiling takes for ever")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, patience(60))
    try:
        cavs.Session(Labelled(STEPS[name], 40)).compiled(data())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
