"""Hand-written programs for the executor tests, and their NumPy references."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from cavs import _engine

ONE, GRAPH, VERTEX, EDGE = 0, 1, 2, 3
LEAF, LEAF_EDGE, INNER, INNER_EDGE = 4, 5, 6, 7  # kinds with keys 0 and 1


def self_(buffer, width, column=0):
    return (buffer, column, width, "self", "none", 0)


def one(buffer, width, column=0):
    return (buffer, column, width, "one", "none", 0)


def index(buffer, width, array, argument=0, column=0):
    return (buffer, column, width, "index", array, argument)


def segment(buffer, width, array, argument=0, column=0):
    return (buffer, column, width, "segment_sum", array, argument)


class Hand:
    """A program under construction; numbers stages as they are added."""

    def __init__(self, kinds=(0, 1)):
        self.p = _engine.Program()
        self.p.kinds = list(kinds)

    def buffer(self, role, space=ONE, width=1, index=0, first=0, last=0, held="all"):
        return self.p.add_buffer(role, index, space, width, first, last, held)

    def weight(self, k, n, pieces):
        return self.p.add_weight(k, n, pieces)

    def op(self, type, space, **rest):
        return self.p.add_instruction({"type": type, "space": space, **rest})

    def matmul(self, space, inputs, weight, out, **rest):
        return self.op("matmul", space, inputs=inputs, weight=weight, out=out, **rest)

    def map(self, space, loads, ops, stores, inner, **rest):
        """ops: (opcode, dst, a, b, c[, imm]); stores: (buffer, register[, mode])."""
        ops = [(*o, 0.0) if len(o) == 5 else o for o in ops]
        registers = max([len(loads), *(o[1] + 1 for o in ops)])
        stores = [(s[0], 0, 0, s[2] if len(s) > 2 else "write", s[1]) for s in stores]
        loads = [o if isinstance(o[0], tuple) else (o, 0, False) for o in loads]
        return self.op(
            "map",
            space,
            loads=loads,
            ops=ops,
            stores=stores,
            registers=registers,
            inner=inner,
            **rest,
        )

    def rows(self, space, body, label="rows"):
        return self.p.add_stage({"type": "rows", "space": space, "body": body, "label": label})

    def loop(self, bodies, reversed=False, label="loop"):
        return self.p.add_stage(
            {"type": "loop", "bodies": bodies, "reversed": reversed, "label": label}
        )

    def global_(self, *instructions, label="global"):
        return self.p.add_stage({"type": "global", "body": list(instructions), "label": label})

    def finish(self, loss=-1, outputs=()):
        self.p.finish(loss, list(outputs))
        return self.p


def assert_read_refused(m, space, read, width, message):
    """Assert that a copy of the operand ``read(m)`` to rows of ``space`` is refused."""
    out = m.buffer("arena", space, width)
    own = VERTEX if space == EDGE else space
    copy = m.op("copy", space, inputs=[read(m)], out=self_(out, width), label="second")
    m.rows(own, [copy])
    with pytest.raises(ValueError, match=message):
        m.finish()


def schedule(graphs, presence=None):
    """graphs: lists of child lists."""
    made = []
    for children in graphs:
        offsets = np.cumsum([0, *map(len, children)]).astype(np.int32)
        flat = np.array([c for cs in children for c in cs], np.int32)
        made.append(_engine.Graph(offsets, flat))
    return _engine.make_schedule(_engine.collate(made), presence)


def random_dag(rng, vertices, most_children=3, wide=0):
    """Children have lower numbers; every vertex may be shared. `wide`: one vertex of that arity."""
    children = []
    for v in range(vertices):
        n = int(rng.integers(0, most_children + 1)) if v else 0
        children.append([int(c) for c in rng.integers(0, v, n)] if v else [])
    if wide:
        children[-1] = [int(c) for c in rng.integers(0, vertices - 1, wide)]
    return children


def batch_children(graphs):
    flat, shift = [], 0
    for children in graphs:
        flat += [[c + shift for c in cs] for cs in children]
        shift += len(children)
    return flat


@dataclass
class TreeRnn:
    """h = tanh(x[token] W + sum of children's h U + b), loss = sum of <h, v>, with backward.

    Parameters: table (V, D), W (D, H), U (H, H), b (H,), v (H,). Int feature 0: token.
    With `dense`, x is float feature 0 instead of a row of the table. With `looped`, gradients are
    summed a task at a time. With `joined`, those of matrices are products of several terms: of W by
    kind, leaves' in two parts of its columns, of U half of its rows each.
    """

    vocabulary: int = 11
    d: int = 7
    h: int = 5
    dense: bool = False
    looped: bool = False
    joined: bool = False
    dtype: type = np.float64
    program: object = None
    h_out: int = -1
    seed: int = 0
    scale: float = 0.4
    parameters: list = field(default_factory=list)

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        d, h = self.d, self.h
        shapes = [(self.vocabulary, d), (d, h), (h, h), (h,), (h,)]
        self.parameters = [(rng.standard_normal(s) * self.scale).astype(self.dtype) for s in shapes]
        m = Hand()
        table = m.buffer("param", width=d, index=0)
        x = m.buffer("feature", VERTEX, d) if self.dense else table
        b, v = m.buffer("param", width=h, index=3), m.buffer("param", width=h, index=4)
        gw, gu = m.buffer("grad", width=h, index=1), m.buffer("grad", width=h, index=2)
        gb, gv = m.buffer("grad", width=h, index=3), m.buffer("grad", width=h, index=4)
        wx = m.buffer("arena", VERTEX, h, first=0, last=1)
        last = 4 if self.looped else 9 if self.dense else 10
        state = m.buffer("arena", VERTEX, h, first=1, last=last)
        pre = m.buffer("scratch", INNER, h)
        losses = m.buffer("arena", VERTEX, 1, first=2, last=3)
        loss = m.buffer("arena", ONE, 1, first=3, last=3)
        dpre = m.buffer("arena", VERTEX, h, first=4, last=last)
        ds = m.buffer("scratch", INNER, h)
        de = m.buffer("arena", EDGE, h, first=4, last=4)
        dx = m.buffer("arena", VERTEX, d, first=4, last=last)
        w = m.weight(d, h, [(1, 0, h, 1, d, h, 0, 0)])
        u = m.weight(h, h, [(2, 0, h, 1, h, h, 0, 0)])
        wt = m.weight(h, d, [(1, 0, 1, h, h, d, 0, 0)])
        ut = m.weight(h, h, [(2, 0, 1, h, h, h, 0, 0)])
        read_x = index(x, d, "order") if self.dense else index(x, d, "index_feature", 0)
        m.rows(
            VERTEX,
            [
                m.matmul(VERTEX, [read_x], w, self_(wx, h), label="x W"),
                m.map(VERTEX, [self_(wx, h), one(b, h)], [("add", 2, 0, 1, 0)], [(wx, 2)], h),
            ],
            "eager",
        )
        leaf = m.map(LEAF, [self_(wx, h)], [("tanh", 1, 0, 0, 0)], [(state, 1)], h, label="leaf")
        inner = [
            m.matmul(INNER, [segment(state, h, "children")], u, self_(pre, h), label="h U"),
            m.map(
                INNER,
                [self_(wx, h), self_(pre, h)],
                [("add", 2, 0, 1, 0), ("tanh", 3, 2, 0, 0)],
                [(state, 3)],
                h,
                label="cell",
            ),
        ]
        m.loop([[leaf], inner], label="forward")
        m.rows(
            VERTEX,
            [
                m.map(
                    VERTEX,
                    [self_(state, h), one(v, h)],
                    [("mul", 2, 0, 1, 0)],
                    [(losses, 2, "sum")],
                    h,
                    label="loss",
                )
            ],
            "losses",
        )
        m.global_(m.op("sum_rows", VERTEX, inputs=[self_(losses, 1)], out=self_(loss, 1)))

        def backward(space):
            return m.map(
                space,
                [segment(de, h, "out"), one(v, h), self_(state, h)],
                [
                    ("add", 3, 0, 1, 0),
                    ("mul", 4, 2, 2, 0),
                    ("constant", 5, 0, 0, 0, 1.0),
                    ("sub", 6, 5, 4, 0),
                    ("mul", 7, 3, 6, 0),
                ],
                [(dpre, 7)],
                h,
                label="cell'",
            )

        def inputs(space):
            return [m.matmul(space, [self_(dpre, h)], wt, self_(dx, d), label="dx")]

        def product_w(space, accumulate=True, first=0, columns=None):
            """Columns of the gradient, from the ``first`` on."""
            columns = h - first if columns is None else columns
            rest = dict(split=1, accumulate=accumulate, label="dW")
            rest["out"] = self_(gw, columns, first)
            inputs = [read_x, self_(dpre, columns, first)]
            return m.op("matmul_tn", space, inputs=inputs, **rest)

        def product_u(begin, end, accumulate=True):
            """Rows [begin, end) of the gradient."""
            rest = dict(split=1, out=self_(gu, h, begin * h), accumulate=accumulate, label="dU")
            of_children = segment(state, end - begin, "children", column=begin)
            return m.op("matmul_tn", INNER, inputs=[of_children, self_(dpre, h)], **rest)

        def sums(space, accumulate):
            """Gradients over the rows of ``space``: in stages of their own, or in the loop."""
            made = [] if self.joined else [product_w(space, accumulate)]
            for value, out in ((dpre, gb), (state, gv)):
                made.append(
                    m.op(
                        "sum_rows",
                        space,
                        inputs=[self_(value, h)],
                        out=self_(out, h),
                        accumulate=accumulate or out == gv,
                    )
                )
            if space != LEAF and not self.joined:
                made.append(product_u(0, h, accumulate))
            if not self.dense:
                table = dict(argument=0, argument2=0, label="dtable")
                made.append(m.op("lookup_grad", space, inputs=[self_(dx, d)], **table))
            return made

        leaf_body = [backward(LEAF)]
        inner_body = [
            backward(INNER),
            m.matmul(INNER, [self_(dpre, h)], ut, self_(ds, h), label="dpre Ut"),
            m.op("copy", INNER_EDGE, inputs=[index(ds, h, "parent")], out=self_(de, h)),
        ]
        if self.looped:
            leaf_body += inputs(LEAF) + sums(LEAF, True)
            inner_body += inputs(INNER) + sums(INNER, True)
        m.loop([leaf_body, inner_body], reversed=True, label="backward")
        if not self.looped:
            m.rows(VERTEX, inputs(VERTEX))
            for instruction in sums(VERTEX, False):
                m.global_(instruction)
            if self.joined:
                some = product_w(LEAF, columns=h - h // 3)
                m.global_(product_w(INNER), some, product_w(LEAF, first=h - h // 3))
                m.global_(product_u(0, h // 2), product_u(h // 2, h))
        self.program = m.finish(loss, [state])
        self.h_out = state

    def executor(self):
        return _engine.Executor(self.program, self.parameters)

    def reference(self, children, x):
        """Loss, h, gradients of (table rows as dx, W, U, b, v), vertex by vertex."""
        _, w, u, b, v = (p.astype(np.float64) for p in self.parameters)
        n = len(children)
        state, sums = np.zeros((n, self.h)), np.zeros((n, self.h))
        for i in range(n):  # children come first by construction
            sums[i] = sum((state[c] for c in children[i]), np.zeros(self.h))
            state[i] = np.tanh(x[i] @ w + sums[i] @ u + b)
        dh = np.tile(v, (n, 1))
        dpre = np.zeros((n, self.h))
        for i in reversed(range(n)):
            dpre[i] = dh[i] * (1 - state[i] ** 2)
            for c in children[i]:
                dh[c] += dpre[i] @ u.T
        grads = [dpre @ w.T, x.T @ dpre, sums.T @ dpre, dpre.sum(0), state.sum(0)]
        return float((state @ v).sum()), state, grads
