"""LSTMs over chains in several notations, and cells that only look like one."""

from __future__ import annotations

import numpy as np

import cavs
from cavs import nn, ops
from cavs.ir import apply

WIDTH, HIDDEN = 5, 4


class Gates(cavs.VertexFunction):
    """An LSTM with its gates in the matrices in any order."""

    order, joined, bias = "ifog", False, True

    def __init__(self, width=WIDTH, hidden=HIDDEN):
        self.width, self.hidden = width, hidden
        self.state = cavs.State(c=hidden, h=hidden)
        sizes = [width + hidden] if self.joined else [width, hidden]
        self.matrices = [cavs.Parameter((n, 4 * hidden), init="xavier") for n in sizes]
        normal = lambda rng, shape: rng.normal(0, 0.5, shape)  # noqa: E731
        self.b = cavs.Parameter((4 * hidden,), init=normal)
        self.p = cavs.Parameter((hidden,), init=normal)

    def gates(self, v, before):
        x = v.pull("x")
        if self.joined:
            z = ops.concat([x, before.h]) @ self.matrices[0]
        else:
            z = before.h @ self.matrices[1] + x @ self.matrices[0]
        z = self.b + z if self.bias else z
        return dict(zip(self.order, ops.split(z, 4), strict=True))

    def vertex(self, v):
        before = v.gather(0)
        g = self.gates(v, before)
        c = before.c * ops.sigmoid(g["f"]) + ops.tanh(g["g"]) * ops.sigmoid(g["i"])
        h = ops.tanh(c) * ops.sigmoid(g["o"])
        v.scatter(c=c, h=h)
        self.give(v, c, h)

    def give(self, v, c, h):
        v.push(h)


class InputFirst(Gates):
    order, joined = "gofi", True


class HiddenFirst(Gates):
    joined, bias = True, False

    def gates(self, v, before):
        z = ops.concat([before.h, v.pull("x")]) @ self.matrices[0]
        return dict(zip("ofig", ops.split(z, 4), strict=True))


class GateByGate(Gates):
    """An LSTM with separate parameters for every gate, two of them without a bias."""

    def __init__(self, width=WIDTH, hidden=HIDDEN):
        super().__init__(width, hidden)
        self.W, self.U = (
            [cavs.Parameter((n, hidden), init="xavier") for _ in range(4)] for n in (width, hidden)
        )

    def gates(self, v, before):
        x = v.pull("x")
        z = [x @ w + before.h @ u for w, u in zip(self.W, self.U, strict=True)]
        return {"i": z[0] + self.b[0:4], "f": self.p + z[1], "g": z[2], "o": z[3]}


class ComputedInput(Gates):
    """An LSTM that computes its input in the cell, from anything but the previous state."""

    def gates(self, v, before):
        x = ops.tanh(v.pull("x")) * 2.0
        z = x @ self.matrices[0] + (before.h @ self.matrices[1] + self.b)
        return dict(zip("fiog", ops.split(z, 4), strict=True))


class Windows(Gates):
    """An LSTM with all weights in one matrix, cut by rows and by columns before the products."""

    joined = True

    def gates(self, v, before):
        whole, width = self.matrices[0], self.width
        upper = apply("rows", whole, start=0, stop=width)
        lower = apply("rows", whole, start=width, stop=width + self.hidden)
        found = {}
        for n, gate in enumerate("gifo"):
            own = slice(n * self.hidden, (n + 1) * self.hidden)
            found[gate] = v.pull("x") @ upper[own] + before.h @ lower[own] + self.b[own]
        return found


LSTMS = [nn.LSTM, Gates, InputFirst, HiddenFirst, GateByGate, ComputedInput, Windows]


class Peephole(Gates):
    def gates(self, v, before):
        found = super().gates(v, before)
        return {**found, "f": found["f"] + before.c * self.p}


class TiedWeights(Gates):
    def gates(self, v, before):
        found = super().gates(v, before)
        return {**found, "o": found["i"]}


class CoupledGates(Gates):
    def vertex(self, v):
        before = v.gather(0)
        g = self.gates(v, before)
        i = ops.sigmoid(g["i"])
        c = i * ops.tanh(g["g"]) + (1.0 - i) * before.c
        h = ops.sigmoid(g["o"]) * ops.tanh(c)
        v.scatter(c=c, h=h)
        v.push(h)


class CellPushed(Gates):
    def give(self, v, c, h):
        v.push(h=h, c=c)


class GatePushed(Gates):
    def give(self, v, c, h):
        v.push(h + ops.sigmoid(c))


class SecondChild(Gates):
    def vertex(self, v):
        before = v.gather(1)
        g = self.gates(v, before)
        c = before.c * ops.sigmoid(g["f"]) + ops.tanh(g["g"]) * ops.sigmoid(g["i"])
        h = ops.tanh(c) * ops.sigmoid(g["o"])
        v.scatter(c=c, h=h)
        v.push(h)


class SumOfChildren(Gates):
    def vertex(self, v):
        child = v.gather()
        z = v.pull("x") @ self.matrices[0] + child.h.sum() @ self.matrices[1] + self.b
        i, f, g, o = ops.split(z, 4)
        c = child.c.sum() * ops.sigmoid(f) + ops.tanh(g) * ops.sigmoid(i)
        h = ops.tanh(c) * ops.sigmoid(o)
        v.scatter(c=c, h=h)
        v.push(h)


class DroppedState(Gates):
    def gates(self, v, before):
        h = ops.dropout(before.h, 0.5)
        z = v.pull("x") @ self.matrices[0] + h @ self.matrices[1] + self.b
        return dict(zip("ifog", ops.split(z, 4), strict=True))


class TwoInputs(Gates):
    def gates(self, v, before):
        x = v.pull("x")
        w = self.matrices[0]
        z = x @ w + (x * x) @ w + before.h @ self.matrices[1]
        return dict(zip("ifog", ops.split(z, 4), strict=True))


class ThreeInputs(Gates):
    """Gates of x, the state and a constant, side by side."""

    def __init__(self, width=WIDTH, hidden=HIDDEN):
        super().__init__(width, hidden)
        self.whole = cavs.Parameter((width + 2 * hidden, 4 * hidden), init="xavier")

    def gates(self, v, before):
        z = ops.concat([v.pull("x"), before.h, ops.tanh(self.p)]) @ self.whole
        return dict(zip("ifog", ops.split(z, 4), strict=True))


class GatesOfOtherInputs(Gates):
    """Gates of which one reads another input than the others."""

    def gates(self, v, before):
        x, w = v.pull("x"), self.matrices[0]
        found = {}
        for n, gate in enumerate("ifog"):
            own = slice(n * self.hidden, (n + 1) * self.hidden)
            of = x * x if gate == "g" else x
            found[gate] = of @ w[own] + before.h @ self.matrices[1][own]
        return found


class OutputOfTheGate(Gates):
    """The output gate is multiplied by the tanh of a gate, not of the new state."""

    def vertex(self, v):
        before = v.gather(0)
        g = self.gates(v, before)
        c = before.c * ops.sigmoid(g["f"]) + ops.tanh(g["g"]) * ops.sigmoid(g["i"])
        h = ops.tanh(g["f"]) * ops.sigmoid(g["o"])
        v.scatter(c=c, h=h)
        v.push(h)


class TransposedWeights(Gates):
    """The matrix of the state is a transposed parameter, which has no rows side by side."""

    def gates(self, v, before):
        own = slice(0, self.hidden)
        x, w = v.pull("x"), self.matrices[0]
        square = self.matrices[1][own].T
        z = [x @ w[n * self.hidden : (n + 1) * self.hidden] + before.h @ square for n in range(4)]
        return dict(zip("ifog", z, strict=True))


OTHERS = [
    Peephole,
    TiedWeights,
    CoupledGates,
    CellPushed,
    GatePushed,
    SecondChild,
    SumOfChildren,
    DroppedState,
    TwoInputs,
    ThreeInputs,
    GatesOfOtherInputs,
    OutputOfTheGate,
    TransposedWeights,
    nn.GRU,
    nn.ChildSumTreeLSTM,
]


class Tagger(cavs.Model):
    """A label for every vertex, from words or from vectors, by one cell or by cells in a row."""

    def __init__(self, cell, depth=1, vectors=False):
        self.vectors = vectors
        self.embedding = nn.Embedding(11, WIDTH)
        self.cells = [cell(WIDTH if i == 0 else HIDDEN, HIDDEN) for i in range(depth)]
        self.output = nn.Linear(HIDDEN, 3)

    def forward(self, batch):
        x = batch["vector"] if self.vectors else self.embedding(batch["token"])
        for cell in self.cells:
            x = cell(batch.graph, x=x)
            x = x.h + x.c if hasattr(x, "c") else x
        return self.output(x)

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch["label"])


class BothWays(Tagger):
    """Two LSTMs over one input, and one more use of the weights of the first."""

    def __init__(self):
        super().__init__(nn.LSTM, 2)
        self.cells[1] = nn.LSTM(WIDTH, HIDDEN)

    def forward(self, batch):
        x = self.embedding(batch["token"])
        a, b = (cell(batch.graph, x=x) for cell in self.cells)
        return self.output(a * b + (x @ self.cells[0].W)[0:HIDDEN])


def chains(lengths, seed=0, absent=False):
    rng = np.random.default_rng(seed)
    return cavs.batch(
        [
            cavs.Graph.chain(
                n,
                features={
                    "token": rng.integers(-1 if absent else 0, 11, n),
                    "vector": rng.normal(size=(n, WIDTH)),
                    "label": rng.integers(0, 3, n),
                },
            )
            for n in lengths
        ]
    )
