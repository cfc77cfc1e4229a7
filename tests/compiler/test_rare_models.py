"""Legal models that few write: each of these has once had wrong gradients, or an error of ours."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import NumericsError
from tests.oracle import agrees, drawn
from tests.runtime.trees import CLASSES, WORDS, Classifier, graph, treebank


def checked(model, batch):
    """Gradients of a model that agrees with the oracle."""
    return agrees(drawn(model, 0.4), batch)[1]


class OfChildren(cavs.VertexFunction):
    """Both children side by side, times a weight that is not a parameter itself."""

    def __init__(self, how, n=8):
        self.how = how
        self.state = cavs.State(h=n)
        self.W = cavs.Parameter((n, 2 * n) if how == "transposed" else (2 * n, n))
        self.wide = cavs.Parameter((2 * n, 2 * n))

    def vertex(self, v):
        left, right = v.gather(0).h, v.gather(1).h
        if self.how == "twice":
            total = ops.concat([left, left]) @ self.W + right
        else:
            weights = {"transposed": lambda: self.W.T, "part": lambda: ops.split(self.wide, 2)[0]}
            total = ops.concat([left, right]) @ weights[self.how]()
        h = ops.tanh(v.pull("x") + total)
        v.scatter(h=h)
        v.push(h)


@pytest.mark.parametrize("how", ["transposed", "part", "twice"])
def test_a_large_batch_of_shared_words_and_a_weight_made_of_others(how):
    """Their products are done at the leaves where the weight is a parameter, and not else."""
    checked(Classifier(OfChildren(how)), treebank(40))


class Share(cavs.VertexFunction):
    """A child divides its state among its parents, of which roots have none."""

    def __init__(self, n=8):
        self.state, self.U = cavs.State(h=n, k=1), cavs.Parameter((n, n))

    def vertex(self, v):
        child = v.gather()
        h = ops.tanh(v.pull("x") + ((child.h / child.k) @ self.U).sum())
        v.scatter(h=h, k=v.pull("parents"))
        v.push(h)


class Shared(cavs.Model):
    def __init__(self):
        self.embedding = nn.Embedding(WORDS, 8, init="xavier")
        self.cell, self.output = Share(), nn.Linear(8, CLASSES)

    def forward(self, batch):
        x = self.embedding(batch["token"])
        return self.output(self.cell(batch.graph, x=x, parents=batch["parents"]))

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch["label"])


def shared_graphs(count):
    """More edges than vertices; how many parents each vertex has."""
    rng = np.random.default_rng(0)
    graphs = []
    for _ in range(count):
        children = [[] if i < 4 else rng.choice(i, 3, replace=False).tolist() for i in range(12)]
        parents = np.bincount(np.concatenate(children).astype(int), minlength=12)
        graphs.append(
            cavs.Graph(
                children,
                {
                    "token": rng.integers(0, WORDS, 12),
                    "label": rng.integers(0, CLASSES, 12),
                    "parents": parents[:, None].astype(float),
                },
            )
        )
    return cavs.batch(graphs)


def test_an_infinite_value_without_a_reader_is_not_computed():
    gradients = checked(Shared(), shared_graphs(30))
    assert all(np.isfinite(g).all() for g in gradients.values())


class Named(cavs.Model):
    """Parameters in a dictionary, whose keys are the user's."""

    def __init__(self):
        self.note = {"C": cavs.Parameter(4), "C#": cavs.Parameter(4), "D#": cavs.Parameter(4)}

    def loss(self, batch):
        total = batch["x"] * self.note["C"] + ops.sigmoid(batch["x"]) * self.note["C#"]
        return ops.mean_squared_error(total + batch["x"] ** 2 * self.note["D#"], 0.5)


def test_a_name_may_end_in_a_sharp():
    rng = np.random.default_rng(0)
    batch = cavs.batch([cavs.Graph([[]], {"x": rng.normal(size=(1, 4))}) for _ in range(5)])
    gradients = checked(Named(), batch)
    assert len({g.tobytes() for g in gradients.values()}) == 3
    assert all(np.abs(g).min() > 0 for g in gradients.values())


class Penalised(Classifier):
    """A penalty on a weight whose products have windows of rows as gradients."""

    def loss(self, batch):
        left, right = self.tree.W[0:3], self.tree.W[3:8]
        penalty = (left * left).sum() + 2.0 * (right * right).sum()
        return 1e-2 * ops.reshape(penalty.sum(), ()) + super().loss(batch)


class Plain(OfChildren):
    def vertex(self, v):
        h = ops.tanh(v.pull("x") + ops.concat([v.gather(0).h, v.gather(1).h]) @ self.W)
        v.scatter(h=h)
        v.push(h)


def test_a_penalty_reaches_all_rows_of_a_weight():
    checked(Penalised(Plain("plain")), treebank(40))


class Twice(cavs.Model):
    """Two passes with dropout inside of the cell, which are to agree."""

    def __init__(self, rate):
        self.embedding, self.cell = nn.Embedding(WORDS, 8, init="xavier"), Dropping(rate)

    def loss(self, batch):
        x = self.embedding(batch["token"])
        first, second = (self.cell(batch.graph, x=x) for _ in range(2))
        return ops.mean_rows(ops.square(first - second).sum(-1))


class Dropping(cavs.VertexFunction):
    def __init__(self, rate):
        self.rate = rate
        self.state, self.U = cavs.State(h=8), cavs.Parameter((8, 8))

    def vertex(self, v):
        h = ops.tanh(v.pull("x") + ops.dropout(v.gather().h.sum(), self.rate) @ self.U)
        v.scatter(h=h)
        v.push(h)


def test_a_cell_that_is_called_twice_drops_out_each_time():
    batch = treebank(6)
    gradients = checked(Twice(0.5), batch)
    assert np.abs(gradients["cell.U"]).max() > 0
    session = cavs.Session(Twice(0.0), dtype=np.float64)
    assert session.gradients(batch)[0] == 0  # and is computed once, where nothing drops out
    assert len(session.compiled(batch).traced.slots) <= 2


class PushesLabels(cavs.VertexFunction):
    def __init__(self):
        self.state = cavs.State(h=8)
        self.U = cavs.Parameter((8, 8))

    def vertex(self, v):
        h = ops.tanh(v.pull("x") + v.gather().h.sum() @ self.U)
        v.scatter(h=h)
        v.push(h=h, label=v.pull("label"))


class Through(cavs.Model):
    def __init__(self):
        self.embedding = nn.Embedding(WORDS, 8, init="xavier")
        self.cell, self.output = PushesLabels(), nn.Linear(8, CLASSES)

    def loss(self, batch):
        x = self.embedding(batch["token"])
        out = self.cell(batch.graph, x=x, label=batch["label"])
        return ops.cross_entropy(self.output(out.h), out.label)


@pytest.mark.parametrize("trees", [3, 40])
def test_indices_may_be_pushed(trees):
    checked(Through(), treebank(trees))


class Reversed(Through):
    def loss(self, batch):
        x = self.embedding(batch["token"])
        out = self.cell(batch.graph.reversed(), x=x, label=batch["label"])
        return ops.cross_entropy(self.output(out.h), out.label)


def test_indices_may_be_pushed_from_the_roots_down():
    checked(Reversed(), treebank(3))


def test_a_model_can_be_copied_after_it_was_explained():
    model = Classifier()
    cavs.explain(model, treebank(3))
    assert copy.deepcopy(model).parameters().keys() == model.parameters().keys()
    assert pickle.loads(pickle.dumps(model)).parameters().keys() == model.parameters().keys()


class Number(cavs.Model):
    def __init__(self):
        self.W = cavs.Parameter((2, 2))

    def forward(self, batch):
        return {"rows": batch["x"] @ self.W, "p": ops.log((self.W * 0.0).sum(-1).mean(-1) - 1.0)}


def test_one_number_that_is_nan_is_of_the_batch():
    batch = cavs.batch([cavs.Graph([[]], {"x": np.ones((1, 2))})])
    with pytest.raises(NumericsError, match="'p' is NaN at the batch as a whole"):
        cavs.Session(Number()).predict(batch)


class TwoNames(cavs.VertexFunction):
    """Two states have one value, which parents read by both names and at both positions."""

    def __init__(self, n=8):
        self.state, self.W = cavs.State(h=n, k=n), cavs.Parameter((2 * n, n))

    def vertex(self, v):
        left, right = v.gather(0), v.gather(1)
        both = ops.concat([left.h + right.k, left.k * right.h])
        h = ops.tanh(v.pull("x") + both @ self.W)
        v.scatter(h=h, k=h)
        v.push(h)


@pytest.mark.parametrize("count", [3, 40])
def test_two_states_of_one_value(count):
    checked(Classifier(TwoNames()), treebank(count))


class OneMatrix(cavs.VertexFunction):
    """The first and the second child are multiplied by one matrix, and play different parts."""

    def __init__(self, n=8):
        self.state, self.U = cavs.State(h=n), cavs.Parameter((n, n))

    def vertex(self, v):
        left, right = (v.gather(k).h @ self.U for k in (0, 1))
        h = ops.tanh(v.pull("x") + ops.sigmoid(left) * right)
        v.scatter(h=h)
        v.push(h)


@pytest.mark.parametrize("copies", [1, 20])
def test_children_at_two_positions_and_one_matrix(copies):
    """Vertices share their children, so that products are done once, at the child."""
    children = [[], [], [0, 1], [1, 0], [1, 1], [2, 3], [3, 2], [4, 3], [5, 6], [7, 5]]
    rng = np.random.default_rng(0)
    shared = cavs.batch([graph(children, rng) for _ in range(copies)])
    checked(Classifier(OneMatrix()), shared)
