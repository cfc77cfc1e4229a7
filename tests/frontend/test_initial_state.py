"""Initial and final states of cells."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import cavs
from cavs import data, nn, ops
from tests.data.dags import child_lists
from tests.draws import examples
from tests.oracle import traced
from tests.random_cells import RandomCell, cells

F64 = np.dtype(np.float64)


class _Masked:
    """A vertex whose state is the initial one where its feature ``start`` is 1."""

    def __init__(self, v, initial):
        self._v, self._initial = v, initial

    def __getattr__(self, name):
        return getattr(self._v, name)

    def scatter(self, **states):
        start = self._v.pull("start") > 0.5
        self._v.scatter(**{n: ops.where(start, self._initial[n], x) for n, x in states.items()})


class _Explicit(cavs.VertexFunction):
    """``cell`` on graphs in which the initial states are vertices."""

    def __init__(self, cell, names):
        self.cell, self.state, self.names = cell, cell.state, names

    def vertex(self, v):
        self.cell.vertex(_Masked(v, {n: v.pull(f"first {n}") for n in self.names}))


class _Model(cavs.Model):
    def __init__(self, cell, x_width, explicit):
        self.choices, self.explicit = cell.choices, explicit
        self.cell = _Explicit(cell, list(cell.state.shapes)) if explicit else cell
        self.lift = cavs.Parameter((2, x_width))

    def forward(self, batch):
        cell = self.cell
        graph = batch.graph.reversed() if self.choices["top_down"] else batch.graph
        given = {"x": batch["dense"] @ self.lift}
        if self.choices["edge_feature"]:
            given["relation"] = batch["relation"]
        if self.choices["loss"]:
            given["label"] = batch["label"]
        if not self.explicit:
            return cell(graph, initial=cell.initial(batch), **given)
        first = {
            f"first {n}": ops.reshape(batch[f"first {n}"], (width,))
            for n, (width,) in cell.state.shapes.items()
        }
        return cell(graph, start=batch["start"], **first, **given)

    def loss(self, batch):
        pushed = self.forward(batch)
        return ops.sum_rows(ops.tanh(pushed).sum(-1) * batch["weight"])


def _tripled(children, top_down, rng, shapes):
    """Return a graph, and the one in which each leaf (top-down: root) has a vertex to begin with.

    Values of those are features: only their effect on all others is compared.
    """
    n, edges = len(children), sum(map(len, children))
    below = {c for kids in children for c in kids}
    ends = [v for v in range(n) if (v not in below if top_down else not children[v])]
    dense, relation = rng.normal(size=(n, 2)), rng.normal(size=(edges, 3))
    label = rng.integers(-1, 3, n)
    values = {name: rng.normal(size=(n, width)) for name, width in shapes.items()}
    plain = data.Graph(
        children,
        {"dense": dense, "label": label, "weight": np.ones(n)}
        | {f"first {name}": rows for name, rows in values.items()},
        {"relation": relation},
    )
    more = [list(kids) for kids in children]
    position = {v: n + i for i, v in enumerate(ends)}
    rows, at = [], 0
    for v in range(n):
        rows += [relation[at + i] for i in range(len(children[v]))]
        at += len(children[v])
        if not top_down and v in position:
            more[v].append(position[v])
            rows.append(np.zeros(3))
    for v in ends:
        more.append([v] if top_down else [])
        rows += [np.zeros(3)] if top_down else []
    extra = len(ends)

    def longer(array, fill):
        return np.concatenate([array, np.broadcast_to(fill, (extra, *array.shape[1:]))])

    explicit = data.Graph(
        more,
        {
            "dense": longer(dense, 0.0),
            "label": longer(label, -1),
            "weight": longer(np.ones(n), 0.0),
            "start": longer(np.zeros(n), 1.0),
        }
        | {f"first {k}": np.concatenate([x, x[ends]]) for k, x in values.items()},
        {"relation": np.array(rows).reshape(-1, 3)},
    )
    return plain, explicit, n


class _Given(RandomCell):
    """A random cell whose initial states are features of vertices."""

    def initial(self, batch):
        return {n: ops.reshape(batch[f"first {n}"], s) for n, s in self.state.shapes.items()}


@examples(14)
@given(cells(smooth=False, directions=2), child_lists(7, 3), st.integers(0, 2**31))
def test_a_leaf_begins_as_with_one_child_in_the_initial_state(choices, children, seed):
    choices = {**choices, "whole": None, "starts": "vertex", "pushed_child": False}
    if not choices["top_down"] and any(len(kids) > 2 for kids in children):
        reject()  # cells that number their children read two or three
    rng = np.random.default_rng(seed)
    cell = _Given(choices, 3)
    plain, explicit, n = _tripled(children, choices["top_down"], rng, choices["state"])
    found, first = [], None
    for graph, own in ((plain, False), (explicit, True)):
        model, batch = _Model(cell, 3, own), data.batch([graph])
        traced(model, batch, training=False)  # creates the parameters
        if own:  # the cell has its parameters already
            model.lift.convert(F64)
            model.lift.value = first.lift.value
        else:
            first = model
            model.initialize(5, F64)
        session = cavs.Session(model, dtype=F64)
        try:
            values = session.predict(batch)["output"][:n]
        except cavs.errors.GraphError:
            reject()
        loss, gradients = session.gradients(batch)
        held = model.parameters()
        found.append((values, loss, {id(p): gradients[name] for name, p in held.items()}))
    (values, loss, gradients), (others, other_loss, other_gradients) = found
    np.testing.assert_allclose(values, others, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(loss, other_loss, rtol=1e-9, atol=1e-11)
    shared = gradients.keys() & other_gradients.keys()
    assert len(shared) >= len(gradients) - 1  # all but `lift`
    for p in shared:
        np.testing.assert_allclose(gradients[p], other_gradients[p], rtol=1e-8, atol=1e-10)


# ---- final states, layers, directions -----------------------------------------------------------


class _Layers(cavs.Model):
    """Two layers of both directions, from states of graphs."""

    def __init__(self):
        cells = [nn.LSTM(3 if i < 2 else 8, 4) for i in range(4)]
        pairs = [nn.Bidirectional(cells[0], cells[1]), nn.Bidirectional(cells[2], cells[3])]
        self.stack = nn.Stacked(pairs)
        self.cells = cells

    def forward(self, batch):
        start = [[{"h": batch["h0"]}, None], [None, {"c": batch["h0"], "h": batch["h0"]}]]
        h, final = self.stack.with_final(batch.graph, x=batch["x"], initial=start)
        ends = {f"{i}{j}{s}": final[i][j][s] for i in (0, 1) for j in (0, 1) for s in "ch"}
        return {"h": h, **ends}


def _lstm(cell, x, c, h):
    """Return the states after each row of ``x``."""
    W, U, b = (np.float64(p.value) for p in (cell.W, cell.U, cell.b))
    rows = []
    for row in x:
        i, f, o, u = np.split(row @ W + h @ U + b, 4)
        i, f, o = (1 / (1 + np.exp(-z)) for z in (i, f, o))
        c = i * np.tanh(u) + f * c
        h = o * np.tanh(c)
        rows.append(h)
    return np.array(rows), c, h


def test_layers_of_both_directions_equal_numpy():
    rng, model = np.random.default_rng(0), _Layers()
    model.initialize(0, F64)
    graphs = [
        cavs.Graph.chain(
            n,
            features={"x": rng.normal(size=(n, 3))},
            graph_features={"h0": rng.normal(size=4)},
        )
        for n in (1, 5, 3)
    ]
    found = cavs.Session(model, dtype=F64).predict(cavs.batch(graphs))
    zero, at = np.zeros(4), 0
    for number, g in enumerate(graphs):
        x, h0 = np.float64(g.features["x"]), np.float64(g.graph_features["h0"])
        starts = [(zero, h0), (zero, zero), (zero, zero), (h0, h0)]
        for level in (0, 1):
            up, c, h = _lstm(model.cells[2 * level], x, *starts[2 * level])
            down, c2, h2 = _lstm(model.cells[2 * level + 1], x[::-1], *starts[2 * level + 1])
            for j, (end_c, end_h) in enumerate(((c, h), (c2, h2))):
                np.testing.assert_allclose(found[f"{level}{j}c"][number], end_c, atol=1e-12)
                np.testing.assert_allclose(found[f"{level}{j}h"][number], end_h, atol=1e-12)
            x = np.concatenate([up, down[::-1]], axis=1)
        np.testing.assert_allclose(found["h"][at : at + len(x)], x, atol=1e-12)
        at += len(x)


def test_states_of_every_vertex():
    class Both(cavs.Model):
        def __init__(self):
            self.cell = nn.LSTM(2, 3)

        def forward(self, batch):
            states = self.cell.states(batch.graph, x=batch["x"])
            h = self.cell(batch.graph, x=batch["x"])
            assert (states.h is h) and set("ch") <= {n for n in "ch" if n in states}
            return {"h": h, "c": states.c}

    model = Both()
    model.initialize(0, F64)
    x = np.random.default_rng(1).normal(size=(4, 2))
    batch = cavs.batch([cavs.Graph.chain(4, features={"x": x})])
    found = cavs.Session(model, dtype=F64).predict(batch)
    h, c, _ = _lstm(model.cell, np.float64(np.float32(x)), np.zeros(3), np.zeros(3))
    np.testing.assert_allclose(found["h"], h, atol=1e-12)
    np.testing.assert_allclose(found["c"][-1], c, atol=1e-12)


def test_the_edge_to_the_initial_state_draws_numbers_of_its_own():
    """Numbers depend on stream and row, and edge 0 has the number of vertex 0."""

    class Dropping(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=2)

        def vertex(self, v):
            h = ops.dropout(v.gather().h, 0.5).sum() + v.pull("x")
            v.scatter(h=h)
            v.push(h)

    class Drops(cavs.Model):
        def __init__(self):
            self.cell, self.h = Dropping(), cavs.Parameter(2)

        def forward(self, batch):
            return self.cell(batch.graph, x=batch["x"], initial={"h": self.h})

        def loss(self, batch):
            return ops.mean_rows(self.forward(batch).sum(-1))

    batch = cavs.batch([cavs.Graph([[], [0]], {"x": np.ones((2, 2))})])
    drawn = [n for n in traced(Drops(), batch).nodes() if n.op.name == "uniform"]
    assert {n.type.domain.base for n in drawn} == {"edge", "vertex"}
    assert len({n.attr("stream") for n in drawn}) == 2


# ---- what cannot be a state ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("initial", "error", "text"),
    [
        (lambda b: {"g": b["row"]}, cavs.errors.TraceError, "LSTM has no state 'g'"),
        (lambda b: {"h": b["wide"]}, cavs.errors.ShapeError, "has shape [4], the state [3]"),
        (lambda b: {"h": b["token"]}, cavs.errors.DTypeError, "'h' needs floats, not i32"),
        (lambda b: {"h": b["edge"]}, cavs.errors.TraceError, "a value of every edge"),
        (lambda b: b["row"], cavs.errors.FeatureError, "LSTM is called with initial, which"),
    ],
)
def test_other_initial_states_are_refused(initial, error, text):
    class Wrong(cavs.Model):
        def __init__(self):
            self.cell = nn.LSTM(3, 3)

        def forward(self, batch):
            return self.cell(batch.graph, x=batch["row"], initial=initial(batch))

    rows = {"row": np.zeros((2, 3)), "wide": np.zeros((2, 4)), "token": [0, 1]}
    graph = cavs.Graph([[], [0]], rows, {"edge": np.zeros((1, 3))})
    with pytest.raises(error, match=re.escape(text)) as found:
        cavs.Session(Wrong()).predict(cavs.batch([graph]))
    assert "test_initial_state.py" in str(found.value) and "hint: " in str(found.value)


def test_a_stack_of_other_states_or_cells_is_refused():
    class Wrong(cavs.Model):
        def __init__(self):
            self.stack = nn.Stacked([nn.GRU(3, 3), nn.GRU(3, 3)])

        def forward(self, batch):
            return self.stack(batch.graph, x=batch["x"], initial=[None])

    batch = cavs.batch([cavs.Graph.chain(2, features={"x": np.zeros((2, 3))})])
    with pytest.raises(cavs.errors.TraceError, match="Stacked has 2 cells, the initial states are"):
        cavs.Session(Wrong()).predict(batch)
    for layers in ([], nn.GRU(3, 3), "ab"):
        with pytest.raises(cavs.errors.ConfigError, match="a list of cells"):
            nn.Stacked(layers)


def test_the_edge_to_the_initial_state_has_no_index():
    """A lookup by an index of edges is zero there, as where the index is absent."""

    class Labelled(cavs.VertexFunction):
        def __init__(self):
            self.state, self.kinds = cavs.State(h=2), nn.Embedding(3, 2)

        def vertex(self, v):
            h = ops.tanh((v.gather().h + self.kinds(v.edge("kind"))).sum() + v.pull("x"))
            v.scatter(h=h)
            v.push(h)

    class Related(cavs.Model):
        def __init__(self):
            self.cell, self.h = Labelled(), cavs.Parameter(2, init=[0.5, -2.0])

        def forward(self, batch):
            first = {"h": self.h}
            return self.cell(batch.graph, x=batch["x"], kind=batch["kind"], initial=first)

    model = Related()
    model.initialize(0, F64)
    x = np.random.default_rng(1).normal(size=(3, 2))
    graph = cavs.Graph([[], [0], [1]], {"x": x}, {"kind": [2, -1]})
    found = cavs.Session(model, dtype=F64).predict(cavs.batch([graph]))["output"]
    h, rows = model.h.current(), np.float64(np.float32(x))
    for v, kind in enumerate((np.zeros(2), model.cell.kinds.weight.current()[2], np.zeros(2))):
        h = np.tanh(h + kind + rows[v])
        np.testing.assert_allclose(found[v], h, atol=1e-12)
