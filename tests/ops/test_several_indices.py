"""Index features of several columns: a row of a table for each index, zeros for absent ones."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from cavs.errors import FeatureError, ShapeError
from tests.oracle import assert_close, reference

ALL_OFF = Passes(**dict.fromkeys(vars(Passes()), False))
ROWS, SIZE = 9, 4
CHILDREN = [[], [], [0, 1], [2, 0, -1]]


class Cell(cavs.VertexFunction):
    """Looks edge indices up inside of the cell."""

    def __init__(self):
        self.state = cavs.State(h=SIZE)
        self.relation = nn.Embedding(ROWS, SIZE, init="xavier")

    def vertex(self, v):
        several = self.relation(v.edge("kinds"))  # (2, SIZE) for each edge
        child = v.gather().h * ops.sigmoid(several.sum(-2))
        h = ops.tanh(v.pull("x") + child.sum())
        v.scatter(h=h)
        v.push(h)


class Model(cavs.Model):
    def __init__(self, sparse=True):
        self.table = nn.Embedding(ROWS, SIZE, init="xavier", sparse=sparse)
        self.mix = nn.Linear(3 * SIZE, SIZE)
        self.cell = Cell()

    def forward(self, batch):
        rows = self.table(batch["sub"])  # (3, SIZE)
        x = rows.sum(-2) + self.mix(ops.reshape(rows, (3 * SIZE,))) + self.table(batch["token"])
        h = self.cell(batch.graph, x=x, kinds=batch["kinds"])
        return {"h": h, "rows": rows, "of_graph": self.table(batch["topics"])}

    def loss(self, batch):
        out = self.forward(batch)
        of_graphs = ops.mean_squared_error(out["of_graph"], 0.1)
        return ops.mean_squared_error(out["h"], 0.3) + of_graphs


def graph_of(seed, children=CHILDREN, absent=True):
    rng = np.random.default_rng(seed)

    def indices(*shape):
        return rng.integers(-1 if absent else 0, ROWS, shape)

    n, edges = len(children), sum(c >= 0 for kids in children for c in kids)
    return cavs.Graph(
        children,
        {"sub": indices(n, 3), "token": indices(n)},
        {"kinds": indices(edges, 2)},
        graph_features={"topics": indices(2)},
    )


def graphs_of():
    """Two equal graphs, one of one vertex, and another."""
    return [graph_of(0), graph_of(1), graph_of(0), graph_of(2, [[]])]


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("passes", [None, ALL_OFF])
def test_values_and_gradients_equal_the_oracle(sparse, passes):
    model = Model(sparse)
    model.initialize(1, np.float64)
    batch = cavs.batch(graphs_of())
    session = cavs.Session(model, dtype=np.float64, passes=passes)
    _, expected = reference(model, batch)
    loss, gradients = session.gradients(batch)
    assert_close(loss, expected["loss"], 1e-12, "loss")
    for name, g in gradients.items():
        assert_close(g, expected[f"grad:{name}"], 1e-12, name)
    table = model.table.weight.current()
    index = batch["sub"]
    rows = np.where(index[..., None] < 0, 0.0, table[np.maximum(index, 0)])
    np.testing.assert_array_equal(session.predict(batch)["rows"], rows)


def test_merged_vertices_have_the_same_values():
    model = Model()
    batch = cavs.batch(graphs_of() * 200)
    on, off = (
        cavs.Session(model, dtype=np.float64, passes=Passes(merge_vertices=merge)).gradients(batch)
        for merge in (True, False)
    )
    assert_close(on[0], off[0], 1e-12, "loss")
    for name, g in on[1].items():
        assert_close(g, off[1][name], 1e-12, name)


def test_absent_indices_of_several_make_no_kinds():
    """There would be one for each combination; a later batch with the first of them compiles
    nothing, either."""
    session = cavs.Session(Model())
    session.gradients(cavs.batch([graph_of(i, absent=False) for i in (0, 1)]))
    assert len(session.latest().decisions.kinds) == 2
    session.gradients(cavs.batch(graphs_of()))
    assert not any("sub" in name or "kinds" in name for name in session.optional_features)


def test_only_rows_of_the_batch_move_in_a_sparse_table():
    model = Model()
    trainer = cavs.Trainer(model, cavs.optim.Adagrad(lr=0.1), seed=0)
    before = model.table.weight.value.copy()
    batch = cavs.batch([graph_of(0)])
    trainer.step(batch)
    used = {int(i) for name in ("sub", "token", "topics") for i in np.ravel(batch[name])} - {-1}
    moved = np.flatnonzero((model.table.weight.value != before).any(-1))
    assert set(moved) == used and len(used) < ROWS


def test_wrong_indices_name_feature_and_vertex():
    graph = graph_of(0)
    sub = np.array(graph.features["sub"])
    sub[2, 1] = ROWS
    batch = cavs.batch([graph_of(1), graph.with_features({"sub": sub})])
    with pytest.raises(FeatureError, match=f"'sub' is {ROWS} at vertex 2 of graph 1(.|\n)*9 rows"):
        cavs.Session(Model()).gradients(batch)
    cube = graph_of(0).with_features({"sub": np.zeros((4, 3, 2), np.int32)})
    with pytest.raises(ShapeError, match=r"several in one axis(.|\n)*reshape"):
        cavs.Session(Model()).predict(cavs.batch([cube]))


def test_a_model_with_several_indices_is_drawn():
    assert "lookup" in cavs.inspect.dot_function(Cell(), graph_of(0), x=SIZE)
