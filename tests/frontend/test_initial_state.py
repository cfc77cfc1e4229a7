"""Initial and final states of cells."""

from __future__ import annotations

import numpy as np
from hypothesis import given, reject
from hypothesis import strategies as st

import cavs
from cavs import data, ops
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


@examples(25)
@given(cells(smooth=False, directions=2), child_lists(7, 3), st.integers(0, 2**31))
def test_a_leaf_begins_as_with_one_child_in_the_initial_state(choices, children, seed):
    choices = {**choices, "whole": None, "starts": "vertex", "pushed_child": False}
    if not choices["top_down"] and any(len(kids) > 2 for kids in children):
        reject()  # cells that number their children read two or three
    rng = np.random.default_rng(seed)
    cell = _Given(choices, 3)
    plain, explicit, n = _tripled(children, choices["top_down"], rng, choices["state"])
    found = []
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
