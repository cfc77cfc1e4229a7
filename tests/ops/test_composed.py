"""Functions made of operators: their values as NumPy has them, their gradients as the oracle's."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import ops
from cavs.errors import ConfigError, TraceError
from tests.oracle import assert_close, reference

ROWS = np.array([[-1.5, -0.2, 0.3, 2.0], [0.7, -3.0, 1.1, 0.4], [0.1, 0.2, -0.4, 0.9]])
ABOVE_ZERO = np.abs(ROWS) + 0.1

CASES = {
    "square": (lambda x, y: x**2, lambda x, y: x**2),
    "cube": (lambda x, y: x**3, lambda x, y: x**3),
    "seventh": (lambda x, y: x**7.0, lambda x, y: x**7),
    "none": (lambda x, y: x**0 * y, lambda x, y: y),
    "inverse": (lambda x, y: y**-2, lambda x, y: y**-2.0),
    "root": (lambda x, y: y**0.5, lambda x, y: y**0.5),
    "fraction": (lambda x, y: y**1.7, lambda x, y: y**1.7),
    "abs": (lambda x, y: abs(x), lambda x, y: np.abs(x)),
    "scalar": (lambda x, y: np.array(2.0) * x, lambda x, y: 2 * x),
    "equal": (lambda x, y: ops.equal(x, ops.maximum(x, 0.25)), lambda x, y: 1.0 * (x >= 0.25)),
    "clip": (lambda x, y: ops.clip(x, -1, 0.5), lambda x, y: np.clip(x, -1, 0.5)),
    "leaky_relu": (lambda x, y: ops.leaky_relu(x, 0.1), lambda x, y: np.where(x > 0, x, 0.1 * x)),
    "elu": (lambda x, y: ops.elu(x, 2.0), lambda x, y: np.where(x > 0, x, 2 * np.expm1(x))),
    "dot": (ops.dot, lambda x, y: (x * y).sum(-1)),
    "split": (lambda x, y: ops.split(x, [1, 3])[1], lambda x, y: x[:, 1:]),
    "logsumexp": (
        lambda x, y: ops.logsumexp(300.0 * x + y),
        lambda x, y: np.logaddexp.reduce(300.0 * x + y, -1),
    ),
    "min": (lambda x, y: x.min(-1), lambda x, y: x.min(-1)),
}


class Composed(cavs.Model):
    def __init__(self, function):
        self.function = function
        self.a = cavs.Parameter(4, init="ones")
        self.b = cavs.Parameter(4, init="ones")

    def forward(self, batch):
        return self.function(batch["x"] * self.a, batch["y"] * self.b)

    def loss(self, batch):
        return ops.mean_squared_error(self.forward(batch), 0.3)


def batch_of(**features):
    return cavs.batch([cavs.Graph([[], [0], [0, 1]], features)])


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    function, numpy = CASES[name]
    model, batch = Composed(function), batch_of(x=ROWS, y=ABOVE_ZERO)
    session = cavs.Session(model, dtype=np.float64)
    x, y = batch["x"].astype(np.float64), batch["y"].astype(np.float64)
    assert_close(session.predict(batch)["output"], numpy(x, y), 1e-12, "value")
    _, expected = reference(model, batch)
    loss, gradients = session.gradients(batch)
    assert_close(loss, np.mean((numpy(x, y) - 0.3) ** 2), 1e-12, "loss")
    for parameter, g in gradients.items():
        assert_close(g, expected.get(f"grad:{parameter}", np.zeros(4)), 1e-12, parameter)


def test_parameters_take_every_operator():
    class Parameters(cavs.Model):
        def __init__(self):
            self.w = cavs.Parameter(4, init=[1.0, -2.0, 3.0, 4.0])

        def forward(self, batch):
            w = self.w
            value = (w / 2 + 1 / w - abs(w) + w**2) * ops.where(w > 0, 1.0, 10.0)
            return batch["x"] * 0.0 + value + w.sum() + w.mean() + w.max() + w.min()

    w = np.array([1.0, -2.0, 3.0, 4.0])
    expected = (w / 2 + 1 / w - abs(w) + w**2) * np.where(w > 0, 1.0, 10.0)
    expected += w.sum() + w.mean() + w.max() + w.min()
    found = cavs.Session(Parameters()).predict(batch_of(x=ROWS))["output"]
    assert_close(found, np.broadcast_to(expected, (3, 4)), 1e-6, "value")


def test_least_child_and_number_of_children():
    class Cell(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=4)

        def vertex(self, v):
            v.scatter(h=v.pull("x"))
            v.push(least=v.gather().h.min(), count=v.num_children)

    class Model(cavs.Model):
        def __init__(self):
            self.cell = Cell()

        def forward(self, batch):
            return vars(self.cell(batch.graph, x=batch["x"]))

    found = cavs.Session(Model()).predict(batch_of(x=ROWS))
    least = [np.zeros(4), ROWS[0], ROWS[:2].min(axis=0)]
    assert_close(found["least"], np.array(least), 1e-6, "min")
    assert found["count"].tolist() == [0, 1, 2]


def test_the_mean_over_a_graph():
    class Model(cavs.Model):
        def __init__(self):
            self.w = cavs.Parameter(4, init="ones")

        def forward(self, batch):
            return ops.mean_graph(batch["x"] * self.w)

        def loss(self, batch):
            return ops.mean_squared_error(self.forward(batch), 0.0)

    batch = cavs.batch(
        [cavs.Graph([[], [0], [0, 1]], {"x": ROWS}), cavs.Graph([[]], {"x": ROWS[:1]})]
    )
    session = cavs.Session(Model(), dtype=np.float64)
    means = np.array([batch["x"][:3].mean(axis=0, dtype=np.float64), batch["x"][3]])
    assert_close(session.predict(batch)["output"], means, 1e-12, "mean")
    assert_close(session.gradients(batch)[1]["w"], (2 * means**2).sum(axis=0) / 8, 1e-12, "w")


def test_binary_cross_entropy():
    class Model(cavs.Model):
        def __init__(self):
            self.w = cavs.Parameter(4, init="ones")

        def loss(self, batch):
            return ops.binary_cross_entropy(batch["x"] * self.w, batch["t"])

    targets = np.array([[0, 1, 1, 0], [1, 1, 0, 0], [0.5, 0, 1, 1]])
    batch = batch_of(x=50 * ROWS, t=targets)
    x = batch["x"].astype(np.float64)
    p = 1 / (1 + np.exp(-x))
    session = cavs.Session(Model(), dtype=np.float64)
    loss, gradients = session.gradients(batch)
    assert_close(loss, np.mean(np.logaddexp(0, x) - x * targets), 1e-12, "loss")
    assert_close(gradients["w"], ((p - targets) * x).sum(axis=0) / 12, 1e-12, "w")
    assert session.evaluate(batch).weight == 12  # terms: means over batches weigh by them


def test_what_is_no_operand():
    batch = batch_of(x=ROWS, y=ABOVE_ZERO)
    for function, text in (
        (lambda x, y: ops.split(x, [1, 2])[1], r"sizes \[1, 2\] add up to 3, not 4"),
        (lambda x, y: ops.split(x, [5, -1])[1], r"every size is at least 1"),
        (lambda x, y: ops.split(x, 3)[1], r"4 elements do not divide by 3"),
        (lambda x, y: ops.softmax(x.sum(-1)), r"no axis(.|\n)*value.softmax\(\)"),
        (lambda x, y: ops.where(x == y, x, y), r"combined with False(.|\n)*ops.equal\(a, b\)"),
        (lambda x, y: x**y, r"an exponent is a number(.|\n)*ops.exp"),
        (lambda x, y: x * np.ones(4), r"a ndarray cannot(.|\n)*trainable=False"),
    ):
        with pytest.raises(TraceError, match=text) as caught:
            cavs.Session(Composed(function)).predict(batch)
        assert caught.value.where.startswith("test_composed.py:")


def test_an_unknown_reduction():
    with pytest.raises(ConfigError, match="'avg', but must be 'mean' or 'sum' or 'none'"):
        ops.cross_entropy(None, None, reduction="avg")
