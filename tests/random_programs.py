"""Random models of any operators in any order, to compare every path with the oracle.

A program is a list of numbers, each a choice: which operator comes next, on which values. Shapes,
domains and ranks follow from the choices.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import cavs
from cavs import data, nn, ops
from cavs.ir import as_node
from tests.data.dags import child_lists, with_gaps

VOCABULARY = 5
WIDTHS = (1, 2, 3, 4, 6)
SHAPES = ((1,), (2,), (3,), (6,), (2, 3), (3, 2), (1, 2), (3, 1), (2, 1, 3))


class Choices:
    """Numbers read one after another; zeros after the last."""

    def __init__(self, numbers):
        self.numbers, self.next = numbers, 0

    @property
    def more(self):
        return self.next < len(self.numbers)

    def number(self):
        self.next += 1
        return self.numbers[self.next - 1] if self.next <= len(self.numbers) else 0

    def of(self, options):
        options = list(options)
        return options[self.number() % len(options)]


class Parameters(nn.Module):
    """Parameters created on first use, in the same order in every trace of the model."""

    def __init__(self):
        self.made = []
        self.used = 0

    def get(self, shape):
        if self.used == len(self.made):
            self.made.append(cavs.Parameter(shape, init="uniform"))
        self.used += 1
        parameter = self.made[self.used - 1]
        assert parameter.shape == tuple(shape)
        return as_node(parameter)


UNARY = {
    "tanh": ops.tanh,
    "sigmoid": ops.sigmoid,
    "exp": lambda x: ops.exp(ops.tanh(x)),
    "log": lambda x: ops.log(0.5 + ops.square(x)),
    "sqrt": lambda x: ops.sqrt(0.3 + ops.square(x)),
    "square": lambda x: ops.square(ops.tanh(x)),
    "power": lambda x: (0.4 + ops.sigmoid(x)) ** 2.5,
    "inverse": lambda x: (1.0 + ops.softplus(x)) ** -1,
    "softplus": ops.softplus,
    "silu": ops.silu,
    "gelu": ops.gelu,
    "elu": lambda x: ops.elu(x, 0.7),
    "wave": lambda x: ops.sin(x) * ops.cos(2.0 * x),
    "negative": lambda x: 1 - x,
    "tiny": lambda x: x / 3,
    "stop": lambda x: x - 0.5 * ops.stop_gradient(x),
}
KINKS = {
    "relu": ops.relu,
    "leaky": lambda x: ops.leaky_relu(x, 0.2),
    "absolute": abs,
    "clip": lambda x: ops.clip(x, -0.3, 0.4),
    "positive": lambda x: x * (x > 0.1),
}
BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: 0.5 * a - b,
    "mul": lambda a, b: ops.tanh(a) * b,
    "div": lambda a, b: a / (0.6 + ops.square(b)),
    "ratio": lambda a, b: ops.sigmoid(a) / ops.exp(ops.tanh(b)),
}
KINKED = {
    "maximum": ops.maximum,
    "minimum": ops.minimum,
    "where": lambda a, b: ops.where(a >= b, ops.tanh(a), 0.3 * b),
    "chosen": lambda a, b: ops.where(b < 0.2, a, b * a),
}
OF_CHILDREN = ("sum", "mean", "softmax", "max", "min")


def fits(a, b):
    """Return True if the shapes of rows broadcast."""
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return False
    return True


class Program:
    """The values of a model or a cell so far, and a way to compute one more of them.

    own: further operators by name, functions of a value.
    """

    def __init__(self, choices, weights, values, smooth, **own):
        self.choices, self.weights, self.values = choices, weights, list(values)
        self.unary = UNARY if smooth else UNARY | KINKS
        self.binary = BINARY if smooth else BINARY | KINKED
        self.smooth = smooth
        self.operators = {
            "unary": self.one_by_one,
            "binary": self.joined,
            "second": self.joined,
            "linear": lambda a: self.linear(a, choices.of(WIDTHS)),
            "shape": self.moved,
            "reduce": self.reduced,
            "dropout": lambda a: ops.dropout(a, 0.4),
            "noise": lambda a: ops.normal(a, 0.2),
            **own,
        }

    def run(self, steps):
        for _ in range(steps):
            made = self.operators[self.choices.of(self.operators)](self.value())
            self.values.append(made)
        return self

    def value(self, fit=lambda x: True):
        """Return one of the values, mostly a late one."""
        fitting = [x for x in self.values if fit(x)][::-1]
        return self.choices.of((*fitting[:2], *fitting))

    def flat(self, x):
        return x if len(x.shape) == 1 else ops.reshape(x, (int(np.prod(x.shape)),))

    def linear(self, x, width):
        x = self.flat(x)
        y = x @ self.weights.get((x.shape[0], width))
        return y + self.weights.get((width,)) if self.choices.number() % 2 else y

    def shaped(self, x, shape):
        """Return any value in the given shape."""
        size = int(np.prod(shape))
        x = self.flat(x)
        if x.shape[0] > size and self.choices.number() % 2:
            x = x[:size]
        elif x.shape[0] != size:
            x = self.linear(x, size)
        return x if len(shape) == 1 else ops.reshape(x, shape)

    def one_by_one(self, a):
        return self.unary[self.choices.of(self.unary)](a)

    def joined(self, a):
        b = self.value(lambda b: fits(a, b))
        a, b = (a, b) if self.choices.number() % 2 else (b, a)
        return self.binary[self.choices.of(self.binary)](a, b)

    def reduced(self, a):
        how = self.choices.of(
            ("sum", "mean", "softmax", "norm", "dot", "log_softmax", "logsumexp", "axis", "max")
        )
        if how == "softmax":
            return ops.softmax(a)
        if how == "log_softmax":
            return ops.log_softmax(a)
        if how == "logsumexp":
            return ops.reshape(ops.logsumexp(a), a.shape[:-1] or (1,))
        if how == "axis" and len(a.shape) > 1:
            axis = -2 - self.choices.number() % (len(a.shape) - 1)
            return (a.sum if self.choices.number() % 2 else a.mean)(axis, keepdims=axis == -3)
        if how == "norm":
            d = a - a.mean(-1, keepdims=True)
            return d / ops.sqrt((d * d).mean(-1, keepdims=True) + 0.3)
        if how == "dot":
            x = self.flat(a)
            return ops.reshape(ops.dot(x, ops.tanh(self.shaped(self.value(), x.shape))), (1,))
        return getattr(a, "mean" if how == "axis" or (how == "max" and self.smooth) else how)(
            -1, keepdims=True
        )

    def moved(self, a):
        c = self.choices
        how = c.of(("concat", "split", "slice", "reshape", "repeat"))
        if how == "concat":
            return ops.concat([a, self.value(lambda b: b.shape[:-1] == a.shape[:-1])])
        if how == "split" and a.shape[-1] % 2 == 0:
            left, right = ops.split(a, 2)
            return right * ops.sigmoid(left) if c.number() % 2 else right
        if how == "slice":
            n = a.shape[-1]
            start = c.number() % n
            return a[start : start + 1 + c.number() % (n - start)]
        size = int(np.prod(a.shape))
        if how == "repeat" and len(a.shape) < 3 and size <= 6:
            return a * self.weights.get((2, *(1 for _ in a.shape)))
        return ops.reshape(a, c.of(s for s in (*SHAPES, (size,)) if int(np.prod(s)) == size))


class RandomCell(cavs.VertexFunction):
    """A vertex function built from numbers."""

    def __init__(self, numbers, smooth, top_down):
        self.numbers, self.smooth, self.top_down = numbers, smooth, top_down
        self.weights = Parameters()
        c = Choices(numbers)
        self.state = cavs.State(**{n: c.of(SHAPES) for n in ("h", "c")[: 1 + c.number() % 2]})
        self.start = c.next

    def vertex(self, v):
        self.choices = c = Choices(self.numbers)
        c.next, self.weights.used = self.start, 0
        children = v.gather()
        gathered = [children[name] for name in self.state.shapes]
        values = [v.pull("x"), v.pull("graph"), self.weights.get(c.of(SHAPES)), v.edge("relation")]
        values += [ops.reshape(v.num_children, (1,)) * 0.3, *gathered]
        if not self.top_down:
            values += [v.gather(c.number() % 3)[name] for name in self.state.shapes]
        p = Program(c, self.weights, values, self.smooth, fold=self.fold)
        p.run(c.number() % 10)
        width = c.of(WIDTHS)
        read = sum(ops.tanh(p.shaped(self.fold(x), (width,))) for x in (*gathered, *p.values[-2:]))
        p.values.append(read)
        p.run(c.number() % 5)
        states = {
            name: ops.tanh(p.shaped(self.fold(p.value()), shape) + p.shaped(read, shape))
            for name, shape in self.state.shapes.items()
        }
        v.scatter(**states)
        p.values += states.values()
        late, some = p.run(c.number() % 3).value(), p.value()
        if some.type.domain.base == "graph":  # the outside has it already
            some = p.flat(some) * read[:1]
        v.push(read=read, late=late if late.type.domain.base != "graph" else read[:1], any=some)

    def fold(self, x):
        """Return one value for all children, or their weights."""
        if x.type.domain.base != "edge":
            return x
        if self.top_down:
            return getattr(x, self.choices.of(("sum", "mean")))()
        how = self.choices.of(("sum", "mean", "attend", "prod", "max", "min"))
        if how == "prod":
            return ops.tanh(x).prod()
        if how == "attend" or (self.smooth and how in ("max", "min")):
            return (x.softmax() * ops.sigmoid(x)).sum()
        return getattr(x, how)()


class RandomProgram(cavs.Model):
    """One or two cells, the layers between and around them, and a few losses."""

    def __init__(self, numbers, cells, smooth):
        self.numbers, self.smooth = numbers, smooth
        self.weights = Parameters()
        self.table = nn.Embedding(VOCABULARY, 3, init="xavier")
        self.other = cavs.Parameter((VOCABULARY, 2), init="uniform")
        self.cells = [RandomCell(n, smooth, down) for n, down in cells]

    def __repr__(self):
        cells = [(c.numbers, c.top_down) for c in self.cells]
        return f"RandomProgram({self.numbers}, {cells}, {self.smooth})"

    def program(self, batch):
        c = Choices(self.numbers)
        self.weights.used = 0
        values = [
            self.table(batch["token"]),
            ops.lookup(self.other, batch["second"]),
            batch["dense"],
            batch["matrix"],
            batch["of graph"],
            ops.lookup(self.other, batch["topic"]),
            self.weights.get(c.of(SHAPES)),
        ]
        edges = [batch["relation"], ops.lookup(self.other, batch["kind"])]
        fold = {"fold": lambda x: folded(c, x, self.smooth)}
        p = Program(c, self.weights, values, self.smooth, **fold).run(c.number() % 6)
        for cell in self.cells:
            graph = batch.graph.reversed() if cell.top_down else batch.graph
            shape = c.of(SHAPES)
            for _ in range(1 + (c.number() % 4 == 3)):  # some twice, with results of the first call
                x = p.value(lambda x: x.type.domain.base == "vertex")
                of_graph = p.value(lambda x: x.type.domain.base in ("graph", "one"))
                edge = c.of(edges)
                x, of_graph = p.shaped(x, shape), p.shaped(of_graph, shape[:1])
                out = cell(graph, x=x, graph=of_graph, relation=p.shaped(edge, (3,)))
                p.values += (out.read, out.late, out.any)
                edges += [x for x in p.values[-3:] if x.type.domain.base == "edge"]
            p.run(c.number() % 6)
        return c, p

    def forward(self, batch):
        _, p = self.program(batch)
        return {f"value {i}": x for i, x in enumerate(p.values[-4:])}

    def loss(self, batch):
        c, p = self.program(batch)
        values = [*p.values[-3:], p.value(), p.values[-1]][-1 - c.number() % 4 :]
        return sum(self.term(c, p, x, batch) for x in values)

    def term(self, c, p, x, batch):
        base = x.type.domain.base
        how = c.of(("rows", "mean", "squares", "classes", "binary", "classes by row"))
        if how == "mean" or base == "one":
            return ops.mean_rows(ops.tanh(x).mean(-1) if len(x.shape) == 1 else p.flat(x).mean(-1))
        if how == "rows":
            return 0.1 * ops.sum_rows(ops.square(ops.tanh(p.flat(x))).sum(-1))
        if how == "squares":
            return ops.mean_squared_error(x, 0.3)
        if how == "binary":
            return ops.binary_cross_entropy(p.flat(x)[:1], 0.25)
        label = batch[{"vertex": "label", "edge": "edge label", "graph": "graph label"}[base]]
        logits = p.shaped(x, (3,))
        if how == "classes":
            return ops.cross_entropy(logits, label)
        weight = ops.sigmoid(p.flat(x)[:1].sum(-1))
        return 0.1 * ops.sum_rows(ops.cross_entropy(logits, label, "none") * weight)


def folded(c, x, smooth):
    """Return one value for the vertices of a graph."""
    if x.type.domain.base != "vertex":
        return x
    how = c.of(("sum", "mean", "roots", "leaves", "weights", "max"))
    if how == "weights":
        return ops.softmax_graph(x)
    if how in ("roots", "leaves"):
        return ops.sum_roots(x) if how == "roots" else ops.sum_leaves(x)
    if how == "max" and not smooth:
        return ops.max_graph(x)
    return ops.sum_graph(x) if how == "sum" else ops.mean_graph(x)


numbers = st.lists(st.integers(0, 255), min_size=8, max_size=60)


@st.composite
def programs(draw, smooth=False):
    cells = st.tuples(numbers, st.sampled_from([False, False, True]))
    return RandomProgram(draw(numbers), draw(st.lists(cells, min_size=1, max_size=2)), smooth)


@st.composite
def batches(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    lists = draw(st.lists(child_lists(max_vertices=9, max_arity=4), min_size=1, max_size=4))
    if draw(st.sampled_from([False, False, True])):
        lists = [with_gaps(children, rng) for children in lists]
    return data.batch([graph_of(children, rng) for children in lists])


def graph_of(children, rng):
    n, edges = len(children), sum(c >= 0 for kids in children for c in kids)
    return data.Graph(
        children,
        {
            "token": rng.integers(-1, VOCABULARY, n),
            "second": rng.integers(-1, VOCABULARY, n),
            "label": rng.integers(-1, 3, n),
            "dense": rng.normal(size=(n, 2)),
            "matrix": rng.normal(size=(n, 2, 3)),
        },
        {
            "relation": rng.normal(size=(edges, 3)),
            "kind": rng.integers(-1, VOCABULARY, edges),
            "edge label": rng.integers(-1, 3, edges),
        },
        graph_features={
            "of graph": rng.normal(size=3),
            "topic": int(rng.integers(0, VOCABULARY)),
            "graph label": int(rng.integers(0, 3)),
        },
    )
