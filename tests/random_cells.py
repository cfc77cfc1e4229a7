"""Random models over random graphs, to compare every path with the oracle."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import cavs
from cavs import data, nn, ops
from tests.data.dags import child_lists, with_gaps
from tests.typed_cells import features_of_types

WIDTHS = (1, 2, 3, 5, 17)
VOCABULARY = 7
OF_GRAPH = {
    "sum": ops.sum_graph,
    "mean": ops.mean_graph,
    "roots": ops.sum_roots,
    "leaves": ops.sum_leaves,
    "attended": lambda x: ops.sum_graph(ops.softmax_graph(x) * x),
    "max": ops.max_graph,
}


NOISE = {
    "normal": lambda x: ops.normal(x, 0.1 * x),
    "uniform": lambda x: ops.uniform(x, x + 0.1),
    "gumbel": lambda x: ops.gumbel(x, 0.1),
}


class RandomCell(cavs.VertexFunction):
    """A vertex function drawn from a list of choices; ``smooth`` leaves out kinks."""

    def __init__(self, choices, x_width):
        self.choices = choices
        self.state = cavs.State(**choices["state"])
        self.width = choices["width"]
        self.weights = []
        self.query = cavs.Parameter(self.width, init="uniform")
        self.added = [cavs.Parameter(self.width, init="uniform") for _ in range(2)]
        self.x_width = x_width
        if choices.get("paired") == "index":
            self.relation = nn.Embedding(VOCABULARY, 2)
        rows = {None: None, "one": (), "graph": (2,), "vertex": (2,)}[choices["starts"]]
        self.starts = (
            {}
            if rows is None
            else {
                name: cavs.Parameter((*rows, width))
                if rows
                else cavs.Parameter(width, init="uniform")
                for name, width in choices["state"].items()
            }
        )

    def initial(self, batch):
        """Return the states to begin with: values of vertices, of graphs, or parameters."""
        how, of = self.choices["starts"], ops.tanh
        if how == "one":
            return self.starts
        values = batch["dense"] if how == "vertex" else ops.sum_graph(batch["dense"])
        return {name: of(values @ w) for name, w in self.starts.items()}

    def linear(self, x):
        i = self.used
        self.used += 1
        if i == len(self.weights):
            self.weights.append(cavs.Parameter((x.shape[0], self.width)))
            if i % 2:
                self.weights.append(cavs.Parameter(self.width, init="uniform"))
            else:
                self.weights.append(None)
            self.used = i + 2
        else:
            self.used = i + 2
        y = x @ self.weights[i]
        return y if self.weights[i + 1] is None else y + self.weights[i + 1]

    def vertex(self, v):
        self.used = 0
        c = self.choices
        children = v.gather()
        values = [self.linear(v.pull("x"))]
        edges = []
        for name in self.state.shapes:
            child = getattr(children, name)
            how = c["reads"][name]
            if how == "sum":
                values.append(self.linear(child.sum()))
            elif how == "mean":
                values.append(self.linear(child.mean()))
            elif how == "max":
                values.append(self.linear(child.max()))
            elif how == "prod":
                values.append(self.linear(child.prod()))
            elif how == "edge":
                edges.append(self.linear(child))
            elif how == "attend":
                key = self.linear(child)
                score = (key * values[0]).sum(-1)
                weight = ops.reshape(score.softmax(), (1,))
                values.append((weight * key).sum())
            elif how == "ask":  # one query for all vertices
                key = self.linear(child) * self.query
                weight = ops.reshape(key.sum(-1).softmax(), (1,))
                values.append(self.linear((weight * child).sum()))
            elif how == "nth":
                first, second = v.gather(0)[name], v.gather(1)[name]
                values.append(self.linear(ops.concat([first, second])))
            elif how == "joined":  # one matrix for input and state
                values.append(self.linear(ops.concat([child.sum(), v.pull("x")])))
            elif how == "nths":
                values.append(self.linear(v.gather(0)[name]) + self.linear(v.gather(2)[name]))
        for how in c.get("along", ()):
            values.append(self.along(how, self.linked(v.link("source")), values[-1]))
        if c["edge_feature"]:
            edges.append(self.linear(v.edge("relation")))
        if c["whole"]:  # one value per graph, at its vertices or edges
            whole = self.linear(v.pull("whole"))
            (edges if edges and c["whole"] == "edge" else values).append(whole)
        if edges:
            mixed = edges[0]
            for e in edges[1:]:
                mixed = mixed * ops.sigmoid(e)
            mixed = ops.tanh(mixed + values[0])
            if c["edges"] == "greatest":
                values.append((mixed * ops.sigmoid(edges[0]) + self.query).max())
            values.append(mixed.sum() if c["edges"] == "sum" else mixed.mean())
        if c["loss"]:  # a function of gathered values, which is scattered again
            logits = cut(values[0] + values[-1], 3)
            rows = ops.cross_entropy(logits, v.pull("label"), "none")
            values.append(values[0] * ops.reshape(rows, (1,)))
        for op, i, j in c["steps"]:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(self.apply(op, a, b))
        total = values[-1]
        for x in values[:-1]:
            total = total + x
        if c["added"]:  # gradients of both come from one sum
            total = total + self.added[0] + 0.5 * ops.tanh(self.added[1])
        states = {}
        for name, width in c["state"].items():
            w = self.linear(ops.tanh(total))
            states[name] = ops.tanh(cut(w, width))
        v.scatter(**states)
        if c["pushed_child"]:  # only the push reads its product
            total = total + self.linear(v.gather(1)[next(iter(states))])
        v.push(ops.concat([total, *states.values()]) if c["push_all"] else total)

    def linked(self, source):
        """Return the values of linked vertices, with features of the pairs."""
        how = self.choices.get("paired")
        if how == "weight":
            return source.h * ops.reshape(source.w, (1,))
        if how == "index":
            return ops.concat([self.relation(source.k), source.h])
        return ops.concat([source.h, source.more]) if how == "computed" else source.h

    def along(self, how, linked, query):
        """Return a fold of the values of linked vertices; ``query`` may depend on children."""
        if how in ("sum", "mean", "max", "prod"):
            return self.linear(getattr(linked, how)())
        key = self.linear(linked)
        if how == "mixed":
            return ops.tanh(key + query).sum()
        if how == "dropout":
            return ops.dropout(ops.tanh(key + query), 0.3).sum()
        if how == "normal":
            return ops.normal(key, 0.1 * query).mean()
        weight = ops.reshape((key * query).sum(-1).softmax(), (1,))
        return (weight * key).sum() if how == "attend" else self.linear((weight * linked).sum())

    def apply(self, op, a, b):
        if op == "add":
            return a + b
        if op == "mul":
            return a * ops.sigmoid(b)
        if op == "sub":
            return a - 0.5 * b
        if op == "tanh":
            return ops.tanh(a)
        if op == "wave":
            return ops.sin(2.0 * a) * ops.cos(b)
        if op == "gate":
            i, o = ops.split(ops.concat([a, b]), 2)
            return ops.sigmoid(i) * ops.tanh(o)
        if op == "linear":
            return self.linear(a)
        if op == "scale":  # one row per vertex, of one number
            return ops.reshape(ops.sigmoid(a.mean(-1)), (1,)) * self.query + b
        if op == "norm":
            mean = ops.reshape(a.mean(-1), (1,))
            return (a - mean) / ops.sqrt(
                ops.reshape(((a - mean) * (a - mean)).mean(-1), (1,)) + 0.5
            )
        if op == "softmax":
            return ops.softmax(a) * b
        if op == "relu":
            return ops.relu(a) - 0.1 * ops.maximum(b, a)
        if op == "greatest":  # a maximum of a sum with a product that is also read elsewhere
            product = a * ops.sigmoid(b)
            return (product + self.query).max(-1, keepdims=True) * b + product
        if op == "outer":
            matrix = ops.reshape(self.outer(a), (2, self.width)) * b
            return ops.tanh(matrix).sum(-1)[0:1] + a
        raise AssertionError(op)

    def outer(self, a):
        return ops.concat([a, 0.5 * a])


def cut(x, width):
    """Return the first ``width`` columns, repeated if there are too few."""
    while x.shape[0] < width:
        x = ops.concat([x, x])
    return x[0:width]


class RandomModel(cavs.Model):
    """An embedding, one or two random cells, a classifier and a second loss."""

    def __init__(self, choices):
        self.choices = choices
        self.embedding = nn.Embedding(VOCABULARY, choices["x_width"], init="xavier")
        self.cells = [RandomCell(c, choices["x_width"]) for c in choices["cells"]]
        width = choices["cells"][-1]["width"]
        if choices["cells"][-1]["push_all"]:
            width += sum(choices["cells"][-1]["state"].values())
        self.output = nn.Linear(width, 3)
        self.dense = cavs.Parameter((2, choices["x_width"]))
        if choices["rich"]:
            self.second = nn.Linear(width, 3)
            self.from_dense = cavs.Parameter((2, 3))
            self.of_graph = cavs.Parameter((width, 3))

    def __repr__(self):
        return f"RandomModel({self.choices})"

    def forward(self, batch):
        x = self.embedding(batch["token"])
        if self.choices["dense"]:
            x = x + batch["dense"] @ self.dense
        if self.choices["subwords"]:
            x = x + self.embedding(batch["subwords"]).sum(-2)
        if self.choices["noise"]:
            x = NOISE[self.choices["noise"]](x)
        for cell in self.cells:
            graph = batch.graph.reversed() if cell.choices["top_down"] else batch.graph
            whole = {"whole": ops.tanh(ops.sum_graph(x))} if cell.choices["whole"] else {}
            label = {"label": batch["label"]} if cell.choices["loss"] else {}
            start = {"initial": cell.initial(batch)} if cell.starts else {}
            x = cell(graph, x=x, relation=batch["relation"], **whole, **label, **start)
            if self.choices["dropout"]:
                x = ops.dropout(x, 0.3)
        of_graphs = {"whole": self.of_graphs(x)} if self.choices["graph_loss"] else {}
        return {"logits": self.logits(batch, x), "pushed": x, **of_graphs}

    def logits(self, batch, x):
        """Return logits of a layer, or of everything that may come between a cell and its loss."""
        if not self.choices["rich"]:
            return self.output(x)
        hidden = ops.dropout(ops.tanh(x), 0.2 if self.choices["dropout"] else 0.0)
        whole = ops.tanh(self.of_graphs(x)) @ self.of_graph
        return self.output(hidden) + batch["dense"] @ self.from_dense + whole

    def loss(self, batch):
        out = self.forward(batch)
        loss = ops.cross_entropy(out["logits"], batch["label"])
        if self.choices["rich"]:
            rows = ops.cross_entropy(self.second(out["pushed"]), batch["label"], "none")
            loss = loss + 0.1 * ops.sum_rows(rows * ops.sigmoid(batch["dense"].sum(-1)))
        if self.choices["graph_loss"]:
            whole = self.of_graphs(ops.tanh(out["pushed"]))
            loss = loss + 0.1 * ops.mean_squared_error(whole, 0.25)
        return loss

    def of_graphs(self, x):
        return OF_GRAPH[self.choices["of_graph"]](x)


OPS = ("add", "mul", "sub", "tanh", "wave", "gate", "linear", "scale", "norm", "softmax", "outer")


@st.composite
def cells(draw, smooth, directions):
    state = {n: draw(st.sampled_from(WIDTHS)) for n in ("c", "h")[: draw(st.integers(1, 2))]}
    top_down = draw(st.sampled_from([False, False, True])) if directions == 2 else False
    reads = ("sum", "mean", "edge", "joined")  # for parents, too
    if not top_down:
        reads += ("attend", "ask", "nth", "nths", "prod", *(() if smooth else ("max",)))
    kinds = OPS if smooth else (*OPS, "relu", "greatest")
    of_edges = ("sum", "mean", *(() if smooth or top_down else ("greatest",)))
    step = st.tuples(st.sampled_from(kinds), st.integers(0, 9), st.integers(0, 9))
    return {
        "state": state,
        "top_down": top_down,
        "width": draw(st.sampled_from(WIDTHS)),
        "reads": {n: draw(st.sampled_from(reads)) for n in state},
        "edge_feature": draw(st.booleans()),
        "edges": draw(st.sampled_from(of_edges)),
        "whole": draw(st.sampled_from([None, None, "vertex", "edge"])),
        "steps": draw(st.lists(step, max_size=4)),
        "loss": draw(st.sampled_from([False, False, False, True])),
        "added": draw(st.booleans()),
        "pushed_child": not top_down and draw(st.sampled_from([False, False, True])),
        "push_all": draw(st.booleans()),
        "starts": draw(st.sampled_from([None, None, None, "one", "graph", "vertex"])),
    }


@st.composite
def models(draw, smooth=False, directions=2):
    choices = {
        "x_width": draw(st.sampled_from(WIDTHS)),
        "cells": draw(st.lists(cells(smooth, directions), min_size=1, max_size=2)),
        "dense": draw(st.booleans()),
        "dropout": draw(st.booleans()),
        "subwords": draw(st.sampled_from([False, False, True])),
        "noise": draw(st.sampled_from([None, None, None, *NOISE])),
        "graph_loss": draw(st.booleans()),
        "of_graph": draw(st.sampled_from(list(OF_GRAPH)[: -1 if smooth else None])),
        "rich": draw(st.sampled_from([False, False, True])),
    }
    model = RandomModel(choices)
    return model


@st.composite
def batches(draw, max_vertices=9, max_graphs=4):
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    graphs = []
    for _ in range(draw(st.integers(1, max_graphs))):
        children = draw(child_lists(max_vertices=max_vertices, max_arity=4))
        if draw(st.sampled_from([False, False, True])):
            children = with_gaps(children, rng)
        graphs.append(graph_of(children, rng))
    graphs += draw(st.lists(st.sampled_from(graphs), max_size=2))  # repeated graphs
    return data.batch(graphs)


def graph_of(children, rng, types=None):
    """Return a graph with the features of RandomModel; some tokens and labels are absent.

    types: of the vertices, with features of each type.

    Half the graphs draw floats from three numbers, so that vertices are often equal.
    """
    n, edges = len(children), sum(c >= 0 for kids in children for c in kids)
    few = rng.random() < 0.5

    def floats(*shape):
        return rng.choice([-0.7, 0.2, 1.3], shape) if few else rng.normal(size=shape)

    of_types = {} if types is None else features_of_types(types, rng, floats)
    return data.Graph(
        children,
        of_types
        | {
            "token": rng.integers(-1, VOCABULARY, n),
            "label": rng.integers(-1, 3, n),
            "subwords": rng.integers(-1, VOCABULARY, (n, 3)),
            "dense": floats(n, 2),
        },
        {"relation": floats(edges, 3)},
        types=types,
    )


def traced_parameters(model, batch):
    """Trace once, so that parameters created in vertex() exist, and draw their values.

    Return a batch that the model accepts: a cell that reads only its first children refuses more.
    """
    from tests.oracle import traced

    for cell in model.cells:
        cell.used = 0
    graph = traced(model, batch, training=False)
    model.initialize(3, np.float64)
    most = [s.structure.arity for s in graph.slots if s.structure.arity is not None]
    if not most:
        return batch
    fitting = {id(g): first_children(g, min(most)) for g in batch.graphs}
    return data.batch([fitting[id(g)] for g in batch.graphs])


def first_children(graph, most):
    """Return the graph with at most the first ``most`` children of each vertex."""
    children = [graph.children(v) for v in range(graph.num_vertices)]
    kept = [k < most for kids in children for k, c in enumerate(kids) if c >= 0]
    return data.Graph(
        [[int(c) for c in kids[:most]] for kids in children],
        dict(graph.features),
        {name: rows[np.array(kept, bool)] for name, rows in graph.edge_features.items()},
    )
