"""Cells on ``batch.graph.reversed()`` equal cells on graphs that are reversed one by one."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import GraphError, TraceError
from cavs.runtime import program_cache
from tests.oracle import assert_close, numeric_slope, reference, slope_of

WIDTH = 5


class Summed(cavs.VertexFunction):
    """Reads no state of a single parent, so that it runs on any DAG."""

    def __init__(self, n):
        self.state = cavs.State(c=n, h=n)
        self.W, self.U = cavs.Parameter((n, n)), cavs.Parameter((2 * n, n))

    def vertex(self, v):
        before = v.gather()
        s = ops.concat([before.c.sum(), before.h.mean()])
        h = ops.tanh(v.pull("x") @ self.W + s @ self.U + 0.1 * v.num_children)
        v.scatter(c=h * s[0:WIDTH], h=h)
        v.push(h)


class Gated(cavs.VertexFunction):
    """Edges combine states with their own features and with inputs of their vertex."""

    def __init__(self, n):
        self.state = cavs.State(h=n)
        self.W, self.U = cavs.Parameter((n, n)), cavs.Parameter((n, n))

    def vertex(self, v):
        before = v.gather()
        gate = ops.sigmoid(v.pull("x") @ self.W + before.h @ self.U + v.edge("w"))
        h = ops.tanh(v.pull("x") + (gate * before.h).sum() + v.edge("w").sum())
        v.scatter(h=h)
        v.push(h=h, gates=gate.sum())


def cell_of(name):
    return {"summed": Summed, "gated": Gated}[name](WIDTH)


class Model(cavs.Model):
    def __init__(self, cell, turned):
        self.embedding = nn.Embedding(9, WIDTH)
        self.cell, self.turned = cell, turned
        self.output = nn.Linear(WIDTH, 3)

    def graph(self, batch):
        return batch.graph.reversed() if self.turned else batch.graph

    def forward(self, batch):
        inputs = {"x": self.embedding(batch["token"])}
        if isinstance(self.cell, Gated):
            pushed = self.cell(self.graph(batch), **inputs, w=batch["w"])
            return self.output(pushed.h + 0.5 * pushed.gates)
        return self.output(self.cell(self.graph(batch), **inputs))

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch["label"])


class BothWays(Model):
    """Up, down over the results, and up again: loops of both directions alternate."""

    def __init__(self, cell):
        super().__init__(cell, True)
        self.up = nn.ChildSumTreeLSTM(WIDTH, WIDTH)
        self.again = nn.TreeGRU(WIDTH, WIDTH)

    def forward(self, batch):
        x = self.up(batch.graph, x=self.embedding(batch["token"]))
        down = self.cell(batch.graph.reversed(), x=x)
        return self.output(self.again(batch.graph, x=down) + down)


def graph_of(children, seed=0):
    rng = np.random.default_rng(seed)
    n, edges = len(children), sum(map(len, children))
    features = {"token": rng.integers(0, 9, n), "label": rng.integers(0, 3, n)}
    return cavs.Graph(children, features, {"w": rng.standard_normal((edges, 1))})


def tree(n, rng):
    children = [[] for _ in range(n)]
    for v in range(n - 1):
        children[rng.integers(v + 1, n)].append(v)
    return children


def trees(seed=0):
    """Unequal depths, one vertex, isolated ones, several roots, many children, none."""
    rng = np.random.default_rng(seed)
    shapes = [tree(n, rng) for n in (1, 2, 9, 30)]
    forest = [*tree(6, rng), *([c + 6 for c in row] for row in tree(4, rng)), []]
    chain = [[], *([v] for v in range(39))]
    shapes += [forest, chain, [[] for _ in range(50)] + [list(range(50))], [[], []]]
    return [graph_of(children, i) for i, children in enumerate(shapes)]


def dags(seed=0):
    rng = np.random.default_rng(seed)
    shapes = [
        [rng.choice(v, rng.integers(0, min(v, 4) + 1), replace=False).tolist() for v in range(n)]
        for n in (1, 5, 12, 30)
    ]
    shapes.append([[], [0, 0], [0, 1, 1]])  # more than one edge to the same child
    return trees(seed) + [graph_of(children, i) for i, children in enumerate(shapes)]


CELLS = {
    "lstm": (lambda: nn.LSTM(WIDTH, WIDTH), trees),
    "gru": (lambda: nn.GRU(WIDTH, WIDTH), trees),
    "binary": (lambda: nn.BinaryTreeLSTM(WIDTH, WIDTH), trees),
    "child-sum": (lambda: nn.ChildSumTreeLSTM(WIDTH, WIDTH), dags),
    "summed": (lambda: Summed(WIDTH), dags),
    "gated": (lambda: Gated(WIDTH), dags),
}


def session_of(model, dtype=np.float64, seed=3):
    model.initialize(seed, dtype)
    return cavs.Session(model, dtype=dtype)


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_equals_reversed_graphs(name, serial):
    make, graphs = CELLS[name]
    found, expected = (session_of(Model(make(), turned)) for turned in (True, False))
    found.set_serial(serial)
    batch = cavs.batch(graphs())
    other = cavs.batch([g.reversed() for g in graphs()])
    with mock.patch.object(program_cache, "MIN_MERGED", 1):  # equal vertices are not merged
        loss, gradients = found.gradients(batch)
        other_loss, other_gradients = expected.gradients(other)
        rows = found.predict(batch)["output"]
        assert_close(rows, expected.predict(other)["output"], 1e-13, "output")
    assert_close(loss, other_loss, 1e-13, "loss")
    for key, value in gradients.items():
        assert_close(value, other_gradients[key], 1e-13, key)


@pytest.mark.parametrize("name", CELLS)
def test_gradients_by_finite_differences(name):
    make, graphs = CELLS[name]
    model, batch = Model(make(), True), cavs.batch(graphs()[1:5])
    _, gradients = session_of(model).gradients(batch)
    rng = np.random.default_rng(1)
    direction = {k: rng.standard_normal(np.shape(v)) for k, v in gradients.items()}
    slope = slope_of(gradients, direction)
    assert numeric_slope(model, batch, direction) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("name", ["lstm", "binary", "child-sum", "summed"])
def test_both_ways_against_the_oracle(name):
    make, graphs = CELLS[name]
    model, batch = BothWays(make()), cavs.batch(graphs())
    session = session_of(model)
    _, expected = reference(model, batch)
    loss, gradients = session.gradients(batch)
    assert_close(loss, expected["loss"], 1e-12, "loss")
    for key, value in gradients.items():
        assert_close(value, expected[f"grad:{key}"], 1e-12, key)
    rows = session.predict(batch)["output"]
    assert_close(rows, reference(model, batch, training=False)[1]["output"], 1e-12, "output")


def test_one_cell_in_both_directions_shares_its_parameters():
    class Shared(Model):
        def forward(self, batch):
            x = self.embedding(batch["token"])
            return self.output(self.cell(batch.graph.reversed(), x=self.cell(batch.graph, x=x)))

    model, batch = Shared(nn.ChildSumTreeLSTM(WIDTH, WIDTH), True), cavs.batch(trees())
    _, gradients = session_of(model).gradients(batch)
    _, expected = reference(model, batch)
    for key, value in gradients.items():
        assert_close(value, expected[f"grad:{key}"], 1e-12, key)


def test_a_chain_of_5000():
    found, expected = (
        session_of(Model(nn.LSTM(WIDTH, WIDTH), turned), np.float32) for turned in (True, False)
    )
    chain = graph_of([[], *([v] for v in range(4999))])
    loss, gradients = found.gradients(cavs.batch([chain]))
    other_loss, others = expected.gradients(cavs.batch([chain.reversed()]))
    assert_close(loss, other_loss, 1e-6, "loss")
    for key, value in gradients.items():
        assert_close(value, others[key], 1e-5, key)


def test_a_bidirectional_tagger_learns_from_later_tokens():
    """The label is the token after the next one, which reading from the left cannot predict."""
    rng = np.random.default_rng(0)
    graphs = []
    for n in rng.integers(4, 12, 400):
        token = rng.integers(0, 4, n)
        label = np.append(token[2:], [-1, -1])
        graphs.append(cavs.Graph.chain(int(n), features={"token": token, "label": label}))

    def right(turned):
        model = Model(nn.LSTM(WIDTH, WIDTH), turned)
        model.output = nn.Linear(WIDTH, 4)
        trainer = cavs.Trainer(model, cavs.optim.Adam(lr=0.03))
        trainer.fit(cavs.DataLoader(graphs[:300], batch_size=20, shuffle=True), epochs=30)
        batch = cavs.batch(graphs[300:])
        guess = trainer.session.predict(batch)["output"].argmax(axis=1)
        known = batch["label"] >= 0
        return (guess == batch["label"])[known].mean()

    assert right(False) < 0.4 and right(True) > 0.9


def test_reversed_twice_is_the_original():
    class Twice(Model):
        def graph(self, batch):
            assert batch.graph.reversed() is batch.graph.reversed()
            return batch.graph.reversed().reversed()

    batch = cavs.batch(trees())
    twice, plain = session_of(Twice(Summed(WIDTH), True)), session_of(Model(Summed(WIDTH), False))
    assert twice.evaluate(batch).loss == plain.evaluate(batch).loss


def test_more_parents_than_are_read():
    model, graph = Model(nn.LSTM(WIDTH, WIDTH), True), graph_of([[], [], [0, 1], [1]])
    with pytest.raises(GraphError, match=r"vertex 1 of graph 1 has 2 parents; LSTM reads 1") as e:
        cavs.Session(model).evaluate(cavs.batch([graph_of([[], [0]]), graph]))
    assert "read every parent with v.gather() and reduce" in str(e.value)


class Second(Summed):
    """Reads only a second parent, which trees do not have."""

    def vertex(self, v):
        h = v.pull("x") + v.gather(1).h + v.gather(1).c
        v.scatter(c=h, h=h)
        v.push(h)


def test_a_second_parent_alone():
    batch = cavs.batch([graph_of([[], [0], [1]])])
    session = session_of(Model(Second(WIDTH), True))
    assert np.isfinite(session.evaluate(batch).loss)
    wide = cavs.batch([graph_of([[], [0], [0]])])
    with pytest.raises(GraphError, match=r"vertex 0 of graph 0 has 2 parents; Second reads 1"):
        session.evaluate(wide)


class Largest(Summed):
    def vertex(self, v):
        h = v.pull("x") + v.gather().h.max() + v.gather().c.sum()
        v.scatter(c=h, h=h)
        v.push(h)


class Compared(Summed):
    """An edge needs the sum over all parents of its child."""

    def vertex(self, v):
        before = v.gather()
        h = v.pull("x") + (before.h * before.c.sum()).sum()
        v.scatter(c=h, h=h)
        v.push(h)


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        (Largest, r"takes a maximum over parents(.|\n)*by \.sum\(\) or \.mean\(\)"),
        (Compared, r"needs values of other parents(.|\n)*leave their sum out of it"),
    ],
)
def test_values_that_a_parent_cannot_compute_for_its_child(cell, says):
    with pytest.raises(TraceError, match=says) as caught:
        cavs.Session(Model(cell(WIDTH), True)).evaluate(cavs.batch(trees()))
    assert "test_top_down.py" in str(caught.value) and "Graph.reversed()" in str(caught.value)


def test_explain_shows_the_directions():
    text = str(cavs.explain(BothWays(nn.LSTM(WIDTH, WIDTH)), cavs.batch(trees())))
    lines = [line.partition("  ")[2] for line in text.splitlines() if line.startswith("stage ")]
    loops = [line for line in lines if " forward" in line or " backward" in line]
    assert [("LSTM" in x, "forward" in x, "in reverse" in x) for x in loops if "Tree" not in x] == [
        (True, True, True),
        (True, False, False),
    ]
