"""Random models with a vertex function for each type of vertices, over random typed graphs."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import cavs
from cavs import data, nn, ops
from tests.data.dags import child_lists, with_gaps

TYPES = ("add", "leaf", "mul", "neg")
WIDTHS = (1, 2, 5)
WORDS = 5
READS = {  # ways to read the children, and how many of them are read; None: any number
    "none": 0,
    "first": 1,
    "second": 2,
    "both": 2,
    "third": 3,
    "sum": None,
    "mean": None,
    "prod": None,
    "max": None,
    "edge": None,
    "attend": None,
    "count": None,
}
KINKS = ("max",)
TOP_DOWN = ("none", "sum", "mean", "edge", "count")  # ways to read the parents


class TypedCell(cavs.VertexFunction):
    """A vertex function for each of ``choices["types"]``, drawn from a list of choices."""

    def __init__(self, choices):
        self.choices = choices
        self.state = cavs.State(**choices["state"])
        self.weights = {t: [] for t in choices["types"]}
        self.start = cavs.Parameter(choices["state"]["h"], init="uniform")

    @cavs.vertex(*TYPES)
    def vertex_of_type(self, v):
        c = self.choices["types"][v.type]
        self.used = 0
        values = [self.linear(v, v.pull(name)) for name in c["pulls"]]
        for name in self.state.shapes:
            values += self.of_children(v, name, c["reads"][name])
        if c["edge_feature"] is not None:
            mixed = self.linear(v, v.edge("relation")) * ops.sigmoid(self.linear(v, v.gather().h))
            values.append(mixed.sum() if c["edge_feature"] else mixed.mean())
        if c.get("along"):
            values.append(self.along(v, c["along"], v.link("source")))
        if not values:
            values.append(self.constant(v))
        total = values[0]
        for x in values[1:]:
            total = total * ops.sigmoid(x) if c["gated"] else total + x
        if c["dropout"]:
            total = ops.dropout(total, 0.3)
        total = ops.tanh(total)
        if total.type.domain.base == "graph":  # a pushed value is one of the vertex
            total = total + ops.reshape(v.num_children, (1,))
        v.scatter(**{n: self.linear(v, total, w) for n, w in self.choices["state"].items()})
        pushed = {n: ops.tanh(self.linear(v, total)) for n in c["pushes"]}
        if c["pushes_edges"]:
            pushed["edges"] = self.linear(v, v.gather().h, 2)
        if pushed:
            v.push(**pushed)

    def along(self, v, how, linked):
        """Return a fold of the values of linked vertices."""
        key = self.linear(v, linked.h) * ops.reshape(linked.w, (1,))
        if how == "attend":
            return (ops.reshape((key * key).sum(-1).softmax(), (1,)) * key).sum()
        return getattr(ops.tanh(key), how)()

    def of_children(self, v, name, how):
        every = getattr(v.gather(), name)
        if how == "none":
            return []
        if how in ("first", "second", "third"):
            k = ("first", "second", "third").index(how)
            return [self.linear(v, v.gather(k)[name])]
        if how == "both":
            return [self.linear(v, ops.concat([v.gather(0)[name], v.gather(1)[name]]))]
        if how == "edge":
            return [ops.tanh(self.linear(v, every)).sum()]
        if how == "attend":
            key = self.linear(v, every)
            return [(ops.reshape((key * key).sum(-1).softmax(), (1,)) * key).sum()]
        if how == "count":
            return [self.linear(v, every.sum()) * ops.reshape(v.num_children, (1,))]
        return [self.linear(v, getattr(every, how)())]

    def constant(self, v):
        return self.parameter(v, (3,))

    def linear(self, v, x, width=3):
        return x @ self.parameter(v, (x.shape[0], width)) + self.parameter(v, (width,))

    def parameter(self, v, shape):
        """Return the next parameter of the function of a type; the first trace creates them."""
        own, i = self.weights[v.type], self.used
        if i == len(own):
            own.append(cavs.Parameter(shape, init="uniform"))
        self.used += 1
        return own[i]


def run_typed(cell, graph, inputs):
    """Return what a `TypedCell` pushes over ``graph``, called with the inputs that it reads."""
    read = {n for c in cell.choices["types"].values() for n in c["pulls"]}
    if any(c["edge_feature"] is not None for c in cell.choices["types"].values()):
        read.add("relation")
    if any(c.get("along") for c in cell.choices["types"].values()):
        read.add("source")
    given = {n: x for n, x in inputs.items() if n in read}
    for t, c in cell.choices["types"].items():
        own = inputs.get(t, {})
        used = {n: x for n, x in own.items() if n in c["pulls"]}
        if used:
            given[t] = inputs[t] if t == "mul" else used
    start = {"initial": {"h": cell.start}} if cell.choices["starts"] else {}
    return cell(graph.reversed() if cell.choices["top_down"] else graph, **given, **start)


class TypedModel(cavs.Model):
    """Embeddings of features of types, one or two cells, losses of vertices, graphs and types."""

    def __init__(self, choices):
        self.choices = choices
        self.words = nn.Embedding(WORDS, 2)
        self.cell = TypedCell(choices["cell"])
        self.upper = TypedCell(choices["upper"]) if choices["upper"] else None
        self.down = nn.ChildSumTreeLSTM(3, 3) if choices["down"] else None
        self.output = nn.Linear(3, 3)
        self.narrow = cavs.Parameter((2, 2))

    def __repr__(self):
        return f"TypedModel({self.choices})"

    def inputs(self, batch):
        """Return the inputs of all vertices, and those of each type."""
        of = {t: {"own": batch[t]["x"]} for t in TYPES}
        of["leaf"]["word"] = self.words(batch["leaf"]["word"])
        of["mul"] = batch["mul"]
        whole = ops.tanh(ops.sum_graph(batch["dense"]))
        return {"dense": batch["dense"], "whole": whole, "relation": batch["relation"], **of}

    def run(self, cell, batch, inputs):
        return run_typed(cell, batch.graph, inputs)

    def forward(self, batch):
        inputs = self.inputs(batch)
        pushed = self.run(self.cell, batch, inputs)
        h = pushed.h
        if self.upper is not None:
            h = h + self.run(self.upper, batch, {**inputs, "dense": h}).h
        if self.down is not None:
            h = h + self.down(batch.graph.reversed(), x=h)
        found = {"logits": self.output(h), "roots": ops.sum_roots(h)}
        return found | ({"edges": pushed.edges} if "edges" in pushed else {})

    def loss(self, batch):
        found = self.forward(batch)
        logits = found["logits"]
        loss = ops.mean_squared_error(found["roots"], 0.25)
        if self.choices["labels"] == "all":
            loss = loss + ops.cross_entropy(logits, batch["label"])
        elif self.choices["labels"]:
            loss = loss + ops.cross_entropy(logits, batch[self.choices["labels"]]["label"])
        if self.choices["mean"]:
            x = ops.tanh(batch["add"]["x"] @ self.narrow)
            loss = loss + ops.mean_rows((x * x).sum(-1))
        if self.choices["of_type"]:
            x = ops.sigmoid(logits) * batch["neg"]["x"].sum(-1, keepdims=True)
            loss = loss + 0.1 * ops.mean_squared_error(x, 0.5)
        if "edges" in found:
            loss = loss + 0.1 * ops.mean_squared_error(found["edges"], 0.1)
        return loss


PULLS = {"leaf": ["own", "word", "dense"], "mul": ["x", "dense"]}


@st.composite
def _functions(draw, name, smooth, edges, top_down):
    reads = [how for how in READS if not smooth or how not in KINKS]
    reads = list(TOP_DOWN) if top_down else reads
    pulls = st.sampled_from(PULLS.get(name, ["own", "dense", "whole"]))
    return {
        "pulls": draw(st.lists(pulls, max_size=2, unique=True)),
        "reads": {n: draw(st.sampled_from(reads)) for n in ("c", "h")},
        "edge_feature": draw(st.sampled_from([None, None, True, False])),
        "gated": draw(st.booleans()),
        "dropout": draw(st.sampled_from([False, False, True])),
        "pushes": draw(st.sampled_from([["h"], ["h"], ["h", "more"], []])),
        "pushes_edges": edges and draw(st.booleans()),
    }


@st.composite
def typed_cells(draw, smooth, of_edges=True):
    state = {n: draw(st.sampled_from(WIDTHS)) for n in draw(st.sampled_from(["ch", "h"]))}
    top_down = draw(st.sampled_from([False, False, True]))
    edges = of_edges and not top_down and draw(st.sampled_from([False, False, True]))
    types = {t: draw(_functions(t, smooth, edges, top_down)) for t in TYPES}
    for name in state:  # every state is read
        if all(c["reads"][name] == "none" for c in types.values()):
            types["add"]["reads"][name] = "sum" if top_down else "both"
    if not any("h" in c["pushes"] for c in types.values()):
        types["add"]["pushes"] = ["h"]
    starts = draw(st.sampled_from([False, False, True]))
    return {"state": state, "types": types, "starts": starts, "top_down": top_down}


@st.composite
def typed_models(draw, smooth=False):
    upper = draw(st.sampled_from([False, False, True]))
    return TypedModel(
        {
            "cell": draw(typed_cells(smooth)),
            "upper": draw(typed_cells(smooth)) if upper else None,
            "down": draw(st.sampled_from([False, False, True])),
            "labels": draw(st.sampled_from(["", "all", *TYPES])),
            "mean": draw(st.booleans()),
            "of_type": draw(st.booleans()),
        }
    )


def arities(model):
    """Return the number of children that each type may have; None: any number."""
    found = dict.fromkeys(TYPES)
    for cell in filter(None, (model.cell, model.upper)):
        if cell.choices["top_down"]:
            continue
        for t, c in cell.choices["types"].items():
            read = [READS[c["reads"][n]] for n in cell.state.shapes]
            if c["edge_feature"] is not None or c["pushes_edges"] or None in read:
                continue
            found[t] = min(max(read), max(read) if found[t] is None else found[t])
    return found


def typed_graph(children, types, rng):
    """Return a graph with the features of TypedModel; some words and labels are absent.

    Half the graphs draw floats from two numbers, so that vertices are often equal.
    """
    n, edges = len(children), sum(c >= 0 for kids in children for c in kids)
    few = rng.random() < 0.5

    def floats(*shape):
        return rng.choice([-0.7, 1.3], shape) if few else rng.normal(size=shape)

    features = features_of_types(types, rng, floats)
    features |= {"dense": floats(n, 3), "label": rng.integers(-1, 3, n)}
    return data.Graph(children, features, {"relation": floats(edges, 2)}, types=types)


def features_of_types(types, rng, floats):
    """Return the features of each type; ``floats`` draws those of a shape."""
    count = {t: types.count(t) for t in TYPES}
    return {
        t: {
            "x": floats(count[t], 2),
            "label": rng.integers(-1, 3, count[t]),
            "word": rng.integers(-1, WORDS, count[t]),
        }
        for t in TYPES
    }


def fitting(children, types, most):
    """Return child lists without the children that the functions of their types do not read."""
    return [
        kids if most[t] is None else kids[: most[t]]
        for kids, t in zip(children, types, strict=True)
    ]


@st.composite
def typed_batches(draw, model, max_vertices=7, max_graphs=3):
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    most = arities(model)
    used = draw(st.sampled_from([TYPES, TYPES, TYPES[:2], TYPES[1:2]]))
    graphs = []
    for _ in range(draw(st.integers(1, max_graphs))):
        children = draw(child_lists(max_vertices=max_vertices, max_arity=4))
        if draw(st.sampled_from([False, False, True])):
            children = with_gaps(children, rng)
        types = rng.choice(used, len(children)).tolist()
        graphs.append(typed_graph(fitting(children, types, most), types, rng))
    return data.batch(graphs)
