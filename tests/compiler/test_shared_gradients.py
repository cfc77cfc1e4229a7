"""Terms of a gradient may have other readers, be broadcast, or be a view of themselves."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import CompileError
from cavs.ir import REGISTRY, apply
from cavs.ops.elementwise import elementwise
from tests.compiler.test_rare_models import Shared, checked, shared_graphs
from tests.runtime.trees import CLASSES, WORDS, Classifier, graph, treebank

RNG = np.random.default_rng(0)
ROWS = cavs.batch(
    [
        cavs.Graph([[]], {"x": RNG.normal(size=(1, 3)), "t": RNG.normal(size=(1, 3))})
        for _ in range(7)
    ]
)
CHAINS = cavs.batch(
    [graph([[], *([i] for i in range(n - 1))], RNG, lambda kids: False) for n in (3, 7, 5)]
)


class OneRow(cavs.Model):
    """Parameters that are added to every row: gradients of all are made of the same sum."""

    def __init__(self, added):
        self.added = added
        self.W, self.b = cavs.Parameter((3, 3)), cavs.Parameter(3)
        self.c, self.T = cavs.Parameter(3, init="uniform"), cavs.Parameter((2, 3))
        self.context = cavs.Parameter(2, init="uniform")

    def loss(self, batch):
        y = batch["x"] @ self.W + self.b + self.added(self)
        return ops.mean_squared_error(y, batch["t"])


@pytest.mark.parametrize(
    "added",
    [
        lambda m: ops.tanh(m.c),
        lambda m: 0.5 * m.c,
        lambda m: 0.5 * m.b,
        lambda m: m.c,
        lambda m: m.context @ m.T,
        lambda m: ops.concat([m.b[0:2], m.c[0:1]]),
    ],
    ids=["tanh", "half", "of itself", "two", "product", "parts"],
)
def test_a_sum_that_two_gradients_need(added):
    checked(OneRow(added), ROWS)


class Forward(cavs.Model):
    """The gradient of ``s`` is what the loss multiplies it by."""

    def __init__(self):
        self.s = cavs.Parameter(3, init="uniform")

    def loss(self, batch):
        return (ops.sum_rows(batch["x"]) * self.s).sum()


def test_a_sum_that_a_gradient_and_the_loss_need():
    checked(Forward(), ROWS)


class Biases(cavs.VertexFunction):
    """In a cell, with vertices of several kinds."""

    def __init__(self):
        self.state = cavs.State(h=8)
        self.U, self.b = cavs.Parameter((8, 8)), cavs.Parameter(8)
        self.c = cavs.Parameter(8, init="uniform")

    def vertex(self, v):
        h = ops.tanh(v.pull("x") + v.gather().h.sum() @ self.U + self.b + ops.sigmoid(self.c))
        v.scatter(h=h)
        v.push(h)


@pytest.mark.parametrize("trees", [3, 40])
def test_two_biases_of_a_cell(trees):
    checked(Classifier(Biases()), treebank(trees))


class Repeated(cavs.VertexFunction):
    """A row of two pieces that backward repeats along an axis of its own."""

    def __init__(self):
        self.state = cavs.State(h=4)
        self.U = cavs.Parameter((4, 8))

    def vertex(self, v):
        z = v.pull("x") + v.gather().h.sum() @ self.U
        a, b = ops.split(ops.reshape(z, (4, 2)).sum(-1), 2)
        h = ops.concat([ops.tanh(a), ops.sigmoid(b)])
        v.scatter(h=h)
        v.push(h)


def test_a_row_of_pieces_that_is_repeated():
    checked(Classifier(Repeated()), treebank(5))


class Delay(cavs.VertexFunction):
    """The state is a line of the last three; the cotangent of most of it is passed on as it is."""

    def __init__(self, n=4, steps=3):
        self.n, self.steps = n, steps
        self.state = cavs.State(h=n, line=n * steps)
        self.W, self.U = cavs.Parameter((8, n)), cavs.Parameter((n, n))

    def vertex(self, v):
        n, last = self.n, self.n * (self.steps - 1)
        before = v.gather(0)
        h = ops.tanh(v.pull("x") @ self.W + before.line[last : last + n] @ self.U + 0.1 * before.h)
        v.scatter(h=h, line=ops.concat([h, before.line[0:last]]))
        v.push(h)


class Total(cavs.VertexFunction):
    """A sum along the chain that is shown, and no loss reads."""

    def __init__(self):
        self.state = cavs.State(h=8, total=8)
        self.U = cavs.Parameter((8, 8))

    def vertex(self, v):
        before = v.gather(0)
        h = ops.tanh(v.pull("x") + before.h @ self.U)
        v.scatter(h=h, total=before.total + h)
        v.push(h=h, total=before.total + h)


class Shown(cavs.Model):
    def __init__(self):
        self.embedding = nn.Embedding(WORDS, 8, init="xavier")
        self.cell, self.output = Total(), nn.Linear(8, CLASSES)

    def forward(self, batch):
        out = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return {"scores": self.output(out.h), "total": out.total}

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch)["scores"], batch["label"])


@pytest.mark.parametrize("make", [lambda: Classifier(Delay()), Shown], ids=["delay", "total"])
def test_a_cotangent_that_is_a_view_of_itself(make):
    checked(make(), CHAINS)


class Weighted(Classifier):
    """Losses at vertices times values of their edges, where some labels are absent."""

    def loss(self, batch):
        rows = ops.cross_entropy(self.forward(batch), batch["label"], "none")
        return ops.sum_rows(rows * batch["weight"])


def test_losses_of_vertices_times_values_of_edges():
    children = [[], [], [0, 1], [], [3, 2]]
    graphs = []
    for _ in range(3):
        made = graph(children, RNG)
        label = np.array(made.features["label"])
        label[0] = -1
        features = {"token": made.features["token"], "label": label}
        graphs.append(cavs.Graph(children, features, {"weight": RNG.normal(size=4)}))
    checked(Weighted(), cavs.batch(graphs))


class Penalised(Classifier):
    def __init__(self, penalty):
        super().__init__()
        self.penalty = penalty

    def loss(self, batch):
        return super().loss(batch) + 0.1 * self.penalty(self.embedding.weight)


@pytest.mark.parametrize(
    "penalty",
    [
        lambda table: table.mean(),
        lambda table: ops.square(table.mean(-1)).sum(),
        lambda table: (table * table).sum(),
    ],
    ids=["mean", "of rows", "squares"],
)
def test_a_penalty_on_a_table(penalty):
    checked(Penalised(penalty), treebank(5))


def test_an_operator_without_a_reader_is_not_computed():
    elementwise(
        "rsqrt_of_a_test",
        lambda e, a: e.constant(1.0) / e.sqrt(a),
        lambda n, d: (d * (-0.5 * n * n * n),),
    )
    try:
        model = Shared()
        model.cell.__class__ = type("Own", (type(model.cell),), {"vertex": _by_own})
        checked(model, shared_graphs(30))
    finally:
        del REGISTRY["rsqrt_of_a_test"]


def _by_own(self, v):
    child = v.gather()
    share = child.h * apply("rsqrt_of_a_test", child.k)
    h = ops.tanh(v.pull("x") + (share @ self.U).sum())
    v.scatter(h=h, k=v.pull("parents"))
    v.push(h)


class Centred(Classifier):
    def loss(self, batch):
        h = self.forward(batch)
        return ops.mean_rows(ops.square(h - ops.mean_rows(h)).sum(-1))


def test_a_loss_of_means_below_means_is_refused_in_replicas():
    """A rank knows the mean over its own rows alone."""
    checked(Centred(), treebank(3))
    with pytest.raises(CompileError, match="needs a sum over all rows"):
        cavs.Session(Centred(), replicated=True).gradients(treebank(3))
