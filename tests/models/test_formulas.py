"""Every cell and layer of cavs.nn against the formula of its paper, written in NumPy by hand.

Nothing here goes through a trace: a formula wrong in cavs.nn would be wrong in its oracle, too.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import cavs
from cavs import nn, ops

X, H = 3, 4  # sizes of inputs and states
RNG = np.random.default_rng(0)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def gates(weights: Any, count: int) -> list[Any]:
    """Split a matrix or bias along the last axis into that of each gate."""
    return np.split(weights, count, axis=-1)


def lstm(p, x, children):
    """Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000."""
    (h, c) = children[0] if children else (np.zeros(H), np.zeros(H))
    (Wi, Wf, Wo, Wu), (Ui, Uf, Uo, Uu) = gates(p["W"], 4), gates(p["U"], 4)
    bi, bf, bo, bu = gates(p["b"], 4)
    i, f = sigmoid(x @ Wi + h @ Ui + bi), sigmoid(x @ Wf + h @ Uf + bf)
    o, u = sigmoid(x @ Wo + h @ Uo + bo), np.tanh(x @ Wu + h @ Uu + bu)
    c = f * c + i * u
    return o * np.tanh(c), c


def gru(p, x, children):
    """Cho et al. 2014, equations 5 to 8."""
    h = children[0][0] if children else np.zeros(H)
    (Wr, Wz, Wn), (Ur, Uz), (br, bz, bn) = gates(p["W"], 3), gates(p["U"], 2), gates(p["b"], 3)
    r, z = sigmoid(x @ Wr + h @ Ur + br), sigmoid(x @ Wz + h @ Uz + bz)
    n = np.tanh(x @ Wn + (r * h) @ p["U_n"] + bn)
    return (z * h + (1 - z) * n,)


def child_sum_tree_lstm(p, x, children):
    """Tai et al. 2015, equations 2 to 8."""
    (Wi, Wo, Wu, Wf), (bi, bo, bu, bf) = gates(p["W"], 4), gates(p["b"], 4)
    Ui, Uo, Uu = gates(p["U"], 3)
    total = np.zeros(H)
    for h, _ in children:
        total += h
    i, o = sigmoid(x @ Wi + total @ Ui + bi), sigmoid(x @ Wo + total @ Uo + bo)
    c = i * np.tanh(x @ Wu + total @ Uu + bu)
    for h_k, c_k in children:
        c += sigmoid(x @ Wf + h_k @ p["U_f"] + bf) * c_k
    return o * np.tanh(c), c


def binary_tree_lstm(p, x, children):
    """Tai et al. 2015, equations 9 to 14 with N = 2; U[l] are the rows that multiply h_l.

    Without W_f, a cell lacks the term W_f x of equation 10.
    """
    absent = np.zeros(H), np.zeros(H)
    children = [*children, absent, absent][:2]
    (Wi, Wo, Wu), (bi, bo, bu) = gates(p["W"], 3), gates(p["b"], 3)
    U = [gates(rows, 5) for rows in (p["U"][:H], p["U"][H:])]  # U[l][gate]; the last: f_1, f_2

    def of_children(gate):
        return sum(h @ U[side][gate] for side, (h, _) in enumerate(children))

    i, o = sigmoid(x @ Wi + of_children(0) + bi), sigmoid(x @ Wo + of_children(1) + bo)
    c = i * np.tanh(x @ Wu + of_children(2) + bu)
    x_f = x @ p["W_f"] if "W_f" in p else 0
    for k, (_, c_k) in enumerate(children):
        c += sigmoid(x_f + of_children(3 + k) + gates(p["b_f"], 2)[k]) * c_k
    return o * np.tanh(c), c


def tree_gru(p, x, children):
    """Kokkinos and Potamianos 2017: the sum of the children as the state before."""
    (Wr, Wz, Wn), (br, bz, bn) = gates(p["W"], 3), gates(p["b"], 3)
    before, reset = np.zeros(H), np.zeros(H)
    for (h,) in children:
        before += h
        reset += sigmoid(x @ Wr + h @ p["U_r"] + br) * h
    z = sigmoid(x @ Wz + before @ p["U_z"] + bz)
    return (z * before + (1 - z) * np.tanh(x @ Wn + reset @ p["U_n"] + bn),)


def pair(children):
    """Return the states of two children as one vector, zeros for an absent one."""
    states = [h for (h,) in children]
    return np.concatenate([*states, np.zeros(H), np.zeros(H)])[: 2 * H]


def tree_fc(p, x, children):
    """Looks et al. 2017."""
    return (np.tanh(x + pair(children) @ p["W"] + p["b"]),)


def tree_attention(p, x, children):
    """Scaled dot-product attention, Vaswani et al. 2017, equation 1, over the children."""
    (W, Wq), (b, bq) = gates(p["W"], 2), gates(p["b"], 2)
    context = np.zeros(H)
    if children:
        states = np.stack([h for (h,) in children])
        score = (states @ p["K"]) @ (x @ Wq + bq) / np.sqrt(H)
        weight = np.exp(score) / np.exp(score).sum()
        context = weight @ (states @ p["V"])
    return (np.tanh(x @ W + context + b),)


def tensor_product(x, V, y):
    """Element k is x V_k y, with V_k the k-th block of columns, element for element."""
    found = np.zeros(V.shape[1] // len(y))
    for k in range(len(found)):
        for i in range(len(x)):
            for j in range(len(y)):
                found[k] += x[i] * V[i, k * len(y) + j] * y[j]
    return found


def rntn(p, x, children):
    """Socher et al. 2013, section 4.3."""
    h = pair(children)
    return (np.tanh(x + tensor_product(h, p["V"], h) + h @ p["W"] + p["b"]),)


# A cell, its formula, the largest number of its children. Inputs of the cells that do not multiply
# them are as wide as states.
CELLS = {
    "LSTM": (nn.LSTM(X, H), lstm, 1),
    "GRU": (nn.GRU(X, H), gru, 1),
    "BinaryTreeLSTM": (nn.BinaryTreeLSTM(X, H), binary_tree_lstm, 2),
    "BinaryTreeLSTM, forget_reads_input": (
        nn.BinaryTreeLSTM(X, H, forget_reads_input=True),
        binary_tree_lstm,
        2,
    ),
    "ChildSumTreeLSTM": (nn.ChildSumTreeLSTM(X, H), child_sum_tree_lstm, 9),
    "TreeGRU": (nn.TreeGRU(X, H), tree_gru, 9),
    "TreeFC": (nn.TreeFC(H), tree_fc, 2),
    "TreeAttention": (nn.TreeAttention(X, H), tree_attention, 9),
    "RNTN": (nn.RNTN(H), rntn, 2),
}
STRUCTURES = [
    [[], [0], [1], [2]],
    [[], [], [0, 1], [], [3, 2], [4]],  # a vertex with one child, too
    [[], [], [0, 1], [2, 1], [3, 2]],  # shared children
    [[], [0], [1, 0, 0], [1, 0, 2, 2], []],
]


class Alone(cavs.Model):
    """A cell over an embedding; its output is the state that the cell pushes."""

    def __init__(self, cell, words, width):
        self.embedding, self.cell = nn.Embedding(words, width), cell

    def forward(self, batch):
        return self.cell(batch.graph, x=self.embedding(batch["token"]))


def randomised(model, seed=1):
    """Set all parameters to random values, none of them 0 or 1; return them by name."""
    model.initialize(seed, np.float64)
    rng = np.random.default_rng(seed)
    for parameter in model.parameters().values():
        parameter.value += rng.normal(0, 0.4, parameter.shape)
    return {name.split(".")[-1]: p.value.copy() for name, p in model.parameters().items()}


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_computes_the_formula_of_its_paper(name):
    cell, formula, arity = CELLS[name]
    structures = [s for s in STRUCTURES if max(map(len, s)) <= arity]
    graphs, words = [], 0
    for children in structures:
        graphs.append(cavs.Graph(children, {"token": words + np.arange(len(children))}))
        leaves = [words + v if not kids else -1 for v, kids in enumerate(children)]
        graphs.append(cavs.Graph(children, {"token": leaves}))
        words += len(children)
    width = H if name in ("TreeFC", "RNTN") else X
    model = Alone(cell, words, width)
    p = randomised(model)
    expected = []
    for graph in graphs:
        states: list[Any] = []
        for v, token in enumerate(graph.features["token"]):
            x = p["weight"][token] if token >= 0 else np.zeros(width)
            states.append(formula(p, x, [states[c] for c in graph.children(v)]))
        expected += [h for h, *_ in states]
    found = cavs.Session(model, dtype=np.float64).predict(cavs.batch(graphs))["output"]
    np.testing.assert_allclose(found, np.array(expected), rtol=1e-9, atol=1e-9)
    assert len(np.unique(np.abs(found).round(6))) > len(expected)  # vertices differ


def test_every_cell_has_a_formula():
    def is_cell(value):
        return inspect.isclass(value) and issubclass(value, cavs.VertexFunction)

    cells = {type(cell).__name__ for cell, *_ in CELLS.values()}
    assert {name for name, _ in inspect.getmembers(nn, is_cell)} == cells


# ---- layers and functions ----

ROWS = RNG.normal(0, 2, (5, 6)).astype(np.float32).astype(np.float64)


class Layer(cavs.Model):
    """Apply a function to rows, with a loss that weights all elements differently."""

    def __init__(self, function, width, **parts):
        self.function = function
        self.scale = cavs.Parameter((6,), init="ones")
        self.pick = cavs.Parameter((width,), init=np.linspace(-1, 2, width), trainable=False)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, batch):
        return self.function(batch["x"] * self.scale)

    def loss(self, batch):
        return ops.sum_rows((self.forward(batch) * self.pick).sum(-1))


def batch_of(rows, **features):
    return cavs.batch([cavs.Graph([[] for _ in rows], {"x": rows, **features})])


def check(model, rows, expected):
    found = cavs.Session(model, dtype=np.float64).predict(batch_of(rows))["output"]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def log_softmax(x):
    high = x.max(axis=-1, keepdims=True)
    return x - high - np.log(np.exp(x - high).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (ops.gelu, gelu),
        (ops.silu, lambda x: x * sigmoid(x)),
        (ops.log_softmax, log_softmax),
        (ops.softmax, lambda x: np.exp(log_softmax(x))),
        (ops.softplus, lambda x: np.logaddexp(x, 0)),
    ],
)
def test_a_function_of_rows(function, expected):
    check(Layer(function, 6), ROWS, expected(ROWS))
    large = np.array([[-800.0, 0.0, 790.0, 800.0, 1.0, -1.0]])  # nothing overflows
    with np.errstate(over="ignore"):
        check(Layer(function, 6), large, expected(large))


def test_bilinear():
    V = cavs.Parameter((2, 3 * 4))  # x (2,), y (4,): three elements
    model = Layer(lambda x: ops.bilinear(x[0:2], V, x[2:6]), 3, V=V)
    values = randomised(model)["V"]
    rows = ROWS * model.scale.value
    check(model, ROWS, [tensor_product(x[0:2], values, x[2:6]) for x in rows])


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias):
    model = Layer(nn.Linear(6, 2, bias=bias), 2)
    p = randomised(model)
    assert ("bias" in p) is bias
    check(model, ROWS, ROWS * p["scale"] @ p["weight"] + (p["bias"] if bias else 0))


def layer_norm(p, rows, eps):
    """Ba et al. 2016, equation 4, of each row by itself; the variance is that of all elements."""
    found = []
    for x in rows * p["input"]:
        mean = sum(x) / len(x)
        deviation = np.sqrt(sum((x - mean) ** 2) / len(x) + eps)
        found.append((x - mean) / deviation * p["scale"] + p["shift"])
    return np.array(found)


def test_layer_norm_and_its_gradient():
    model = Layer(nn.LayerNorm(6, eps=0.01), 6)
    randomised(model)
    names = {"input": "scale", "scale": "function.scale", "shift": "function.shift"}
    p = {short: model.parameters()[long].value.copy() for short, long in names.items()}
    check(model, ROWS, layer_norm(p, ROWS, 0.01))

    _, gradients = cavs.Session(model, dtype=np.float64).gradients(batch_of(ROWS))
    direction = {name: RNG.normal(size=6) for name in names}
    slope = sum(float(gradients[long] @ direction[short]) for short, long in names.items())

    def loss(t):
        moved = {name: p[name] + t * direction[name] for name in names}
        return float((layer_norm(moved, ROWS, 0.01) * model.pick.value).sum())

    step = 1e-5
    assert slope == pytest.approx((loss(step) - loss(-step)) / (2 * step), rel=1e-7)
    assert abs(slope) > 0.1


class Dropped(cavs.Model):
    """The gradient of the table is the factor of dropout at each of its elements."""

    def __init__(self, rows, width, rate, layers=1):
        self.table = nn.Embedding(rows, width, init="ones")
        self.dropouts = [nn.Dropout(rate) for _ in range(layers)]

    def forward(self, batch):
        x = self.table(batch["x"])
        for dropout in self.dropouts:
            x = dropout(x)
        return x

    def loss(self, batch):
        return ops.sum_rows(self.forward(batch).sum(-1))


def dropout_scales(model, batch, seed=0, step=0):
    session = cavs.Session(model, dtype=np.float64)
    loss, gradients = session.gradients(batch, seed=seed, step=step)
    assert loss == pytest.approx(gradients["table.weight"].sum())
    return gradients["table.weight"]


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_dropout(rate):
    rows, width = 1500, 8
    batch = batch_of(np.arange(rows))
    model = Dropped(rows, width, rate)
    found = dropout_scales(model, batch)
    kept = found != 0
    np.testing.assert_allclose(found[kept], 1 / (1 - rate), rtol=1e-12)

    def close(values, expected, deviation):
        """Compare with the mean of independent elements, within five standard deviations."""
        assert abs(values.mean() - expected) < 5 * deviation / np.sqrt(values.size)

    spread = np.sqrt(rate * (1 - rate))
    close(kept, 1 - rate, spread)
    for column in kept.T:
        close(column, 1 - rate, spread)
    # Neighbours, in a row and in a column, and the masks of other steps, seeds and layers are
    # independent.
    centred = kept - (1 - rate)
    others = [dropout_scales(model, batch, step=1), dropout_scales(model, batch, seed=1)]
    pairs = [(centred[:, 1:], centred[:, :-1]), (centred[1:], centred[:-1])]
    pairs += [(centred, (other != 0) - (1 - rate)) for other in others]
    for a, b in pairs:
        close(a * b, 0, spread**2)
    close(dropout_scales(Dropped(rows, width, rate, layers=2), batch) != 0, (1 - rate) ** 2, 0.5)
    np.testing.assert_array_equal(dropout_scales(model, batch), found)


def test_evaluation_drops_nothing():
    batch = batch_of(np.arange(20))
    session = cavs.Session(Dropped(20, 3, 0.5), dtype=np.float64)
    result = session.evaluate(batch)
    assert result.loss == 60 and (result.outputs["output"] == 1).all()
    assert (session.predict(batch)["output"] == 1).all()
    assert session.gradients(batch)[0] != 60
