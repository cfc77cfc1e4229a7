"""Per-edge cotangents are recomputed at the child: no row is stored per edge."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cavs
from cavs import nn, ops
from cavs.compiler import save_memory
from cavs.compiler.pipeline import Passes
from tests.draws import examples
from tests.oracle import agrees, assert_close, reference
from tests.runtime.test_edge_cases import STRUCTURES
from tests.runtime.trees import CLASSES, WORDS, Classifier, OfRoots, treebank

SIZE = 8
PLANS = [plan for plan in save_memory.PLANS if plan.sum_at_child]
# Functions of child, parent x and the number of an edge, which a cell sums over the children before
# it multiplies them.
READS = {
    "a function": lambda c, x, w: ops.relu(c),
    "weighted": lambda c, x, w: c * w,
    "by the parent": lambda c, x, w: ops.tanh(c * x + w),
    "of the parent too": lambda c, x, w: ops.tanh(c) * ops.sigmoid(x) * w + x * c,
    "the greater": lambda c, x, w: ops.maximum(c, x) * ops.where(c > 0, w, c),
    "a product": lambda c, x, w: c * c * (x + 1.0),
}


class Each(cavs.VertexFunction):
    """``read`` of every child, folded, is multiplied."""

    def __init__(self, read, size=SIZE, fold="sum"):
        self.read, self.fold = read, fold
        self.state = cavs.State(h=size, g=size)
        self.U, self.V = cavs.Parameter((size, size)), cavs.Parameter((size, size))

    def vertex(self, v):
        children, x = v.gather(), v.pull("x")
        read = self.read(children.h, x, v.edge("w"))
        folded = getattr(read, self.fold)()
        h = ops.tanh(x + folded @ self.U + children.g.sum() @ self.V)
        v.scatter(h=h, g=ops.sigmoid(h) * x)
        v.push(h)


class Weighted(Classifier):
    """A classifier over graphs with numbers at their edges."""

    def forward(self, batch):
        h = self.tree(batch.graph, x=self.embedding(batch["token"]), w=batch["w"])
        return self.output(h)


def shared(seed, graphs=3, absent=0.4):
    """Graphs whose edges outnumber their vertices, and some of one vertex; words at some of any."""
    rng = np.random.default_rng(seed)
    made = [numbered([[]], rng, absent)]
    for n in rng.integers(4, 14, graphs):
        children = [rng.integers(0, v, rng.integers(0, 5)).tolist() if v else [] for v in range(n)]
        made.append(numbered(children, rng, absent))
    return cavs.batch(made)


def numbered(children, rng, absent=0.4):
    n, edges = len(children), sum(map(len, children))
    token = np.where(rng.random(n) < absent, -1, rng.integers(0, WORDS, n))
    label = rng.integers(0, CLASSES, n)
    w = rng.normal(size=(edges, 1))
    return cavs.Graph(children, {"token": token, "label": label}, edge_features={"w": w})


def forced(plan):
    """Every training is compiled by that plan."""
    always = mock.Mock(return_value=True)
    return mock.patch.multiple(save_memory, holds_much=always, holds_less=always, PLANS=(plan,))


def sums(session, batch):
    return [i for i in session.compiled(batch).program.instructions if i.outward]


def checked(model, batch, plan, tolerance=1e-11, **options):
    with forced(plan):
        session, gradients = agrees(model, batch, tolerance, **options)
        assert sums(session, batch)
    return session, gradients


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("plan", PLANS, ids=["products last", "products in the loop"])
@pytest.mark.parametrize("read", READS)
def test_a_function_of_each_child(read, plan, merged):
    model = Weighted(Each(READS[read]), SIZE)
    model.initialize(0, np.float64)
    checked(model, shared(1), plan, passes=Passes(merge_vertices=merged))
    checked(model, shared(2), plan, 1e-4, dtype=np.float32, passes=Passes(merge_vertices=merged))


@pytest.mark.parametrize("plan", PLANS, ids=["products last", "products in the loop"])
@pytest.mark.parametrize("read", READS)
def test_what_all_parents_pull_is_zero(read, plan):
    """Words at leaves alone: a factor, or all that is summed, is a number."""
    rng = np.random.default_rng(10)
    graphs = []
    for n in (4, 9, 14):
        children = [rng.integers(0, v, rng.integers(0, 4)).tolist() if v else [] for v in range(n)]
        token = [-1 if kids else int(rng.integers(WORDS)) for kids in children]
        features = {"token": token, "label": rng.integers(0, CLASSES, n)}
        w = rng.normal(size=(sum(map(len, children)), 1))
        graphs.append(cavs.Graph(children, features, edge_features={"w": w}))
    model, batch = Weighted(Each(READS[read]), SIZE), cavs.batch(graphs)
    model.initialize(0, np.float64)
    with forced(plan):
        agrees(model, batch)


class TwoSums(Each):
    """Each child is read by two sums, so that its cotangent is a sum of two of the parent."""

    def vertex(self, v):
        children, x = v.gather(), v.pull("x")
        read = ops.tanh(children.h * v.edge("w") + children.g)
        first, second = read.sum(), (read + x).sum()
        h = ops.tanh(x + first @ self.U + second @ self.V)
        v.scatter(h=h, g=ops.sigmoid(h) * x)
        v.push(h)


def test_a_child_that_two_sums_read():
    model = Weighted(TwoSums(None), SIZE)
    model.initialize(0, np.float64)
    agrees(model, shared(1), 1e-11)


@pytest.mark.parametrize("specialise", [False, True])
@pytest.mark.parametrize("fold", ["max", "mean"])
def test_a_fold_that_gives_each_child_its_own(fold, specialise):
    """Each child finds by its own row whether it is the maximum."""
    read = READS["of the parent too"] if fold == "mean" else lambda c, x, w: c
    model = Weighted(Each(read, fold=fold), SIZE)
    model.initialize(0, np.float64)
    for absent in (0.0, 0.4, 1.0):
        checked(model, shared(3, absent=absent), PLANS[0], passes=Passes(specialise=specialise))


@pytest.mark.parametrize("size", [1, 300])
def test_rows_of_one_column_and_of_several_blocks(size):
    """The widest is cut in two by the kernels that make it (kMapBlock)."""
    reads = READS["by the parent"] if size > 4 else READS["a function"]
    model = Weighted(Each(reads, size), size)
    model.initialize(0, np.float64)
    checked(model, shared(4, graphs=2), PLANS[1])


class Matrices(cavs.VertexFunction):
    """States of rank two, weighted by one number for each row, and by a row of their own."""

    def __init__(self):
        self.state = cavs.State(H=(3, 4))
        self.r, self.U = cavs.Parameter((3, 1), init="uniform"), cavs.Parameter((12, 12))

    def vertex(self, v):
        c, x = v.gather(), ops.reshape(v.pull("x"), (3, 4))
        each = ops.tanh(c.H * x * self.r) * v.edge("w") + c.H * ops.reshape(
            v.pull("x")[0:3], (3, 1)
        )
        y = ops.reshape(ops.reshape(each.sum(), (12,)) @ self.U, (3, 4))
        v.scatter(H=ops.tanh(x + y))
        v.push(ops.reshape(ops.tanh(x + y), (12,)))


class OfMatrices(cavs.Model):
    def __init__(self):
        self.embedding, self.tree = nn.Embedding(WORDS, 12), Matrices()
        self.output = nn.Linear(12, CLASSES)

    def loss(self, batch):
        h = self.tree(batch.graph, x=self.embedding(batch["token"]), w=batch["w"])
        return ops.cross_entropy(self.output(h), batch["label"])


@pytest.mark.parametrize("plan", PLANS, ids=["products last", "products in the loop"])
def test_states_of_rank_two(plan):
    model = OfMatrices()
    model.initialize(0, np.float64)
    checked(model, shared(5), plan)


@pytest.mark.parametrize("cell", ["attention", "maximum"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_all_structures(structure, cell):
    """Graphs with leaves, shared children, several roots, up to 50 children, and one child
    twice."""
    rng = np.random.default_rng(0)
    batch = cavs.batch([numbered(children, rng) for children in STRUCTURES[structure]])
    made = nn.TreeAttention(SIZE, SIZE) if cell == "attention" else Each(READS["weighted"])
    model = Classifier(made, SIZE) if cell == "attention" else Weighted(made, SIZE)
    model.initialize(0, np.float64)
    with forced(PLANS[0]):
        agrees(model, batch)


def test_one_vertex_at_a_time_and_on_two_threads():
    model, batch = Weighted(Each(READS["by the parent"]), SIZE), shared(6, graphs=30)
    model.initialize(0, np.float64)
    before = cavs.num_threads()
    try:
        found = []
        for threads in (1, 2, 2):
            cavs.set_num_threads(threads)
            session, gradients = checked(model, batch, PLANS[0])
            found.append({k: g.copy() for k, g in gradients.items()})
    finally:
        cavs.set_num_threads(before)
    assert all((found[1][k] == g).all() for k, g in found[2].items())
    session.set_serial(True)
    _, serial = session.gradients(batch)
    for name, g in found[0].items():
        assert_close(serial[name], g, 1e-12, name)


@st.composite
def expressions(draw, depth=3):
    """A function of child, parent and edge."""
    leaf = st.sampled_from(["child", "parent", "edge"])
    kinds = st.sampled_from(["tanh", "sigmoid", "add", "mul", "sub", "where"]) if depth else leaf
    kind = draw(st.one_of(leaf, kinds))
    scale = draw(st.sampled_from([1.0, 2.5]))  # a product that may become one with a sum
    if kind in ("child", "parent", "edge"):
        at = ["child", "parent", "edge"].index(kind)
        return lambda *values: values[at] * scale
    first, second = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    return {
        "tanh": lambda *v: ops.tanh(first(*v)),
        "sigmoid": lambda *v: ops.sigmoid(first(*v)),
        "add": lambda *v: first(*v) + second(*v),
        "mul": lambda *v: first(*v) * second(*v),
        "sub": lambda *v: first(*v) - second(*v),
        "where": lambda *v: ops.where(first(*v) > 0.1, second(*v), first(*v)),
    }[kind]


FOLDS = st.sampled_from(["sum", "mean", "max"])


@examples(30)
@given(expressions(), FOLDS, st.integers(0, 2**31), st.sampled_from(PLANS), st.booleans())
def test_any_function_of_child_parent_and_edge(read, fold, seed, plan, merged):
    model = Weighted(Each(lambda c, x, w: c * 0.5 + read(c, x, w), fold=fold), SIZE)
    model.initialize(0, np.float64)
    batch = shared(seed)
    with forced(plan):
        agrees(model, batch, 1e-9, passes=Passes(merge_vertices=merged))


COMPARED = {
    "a multiple": lambda c, x, w: (2.5 * c + x).max(),
    "the least": lambda c, x, w: -((-(2.5 * c + x)).max()),
    "with the parent": lambda c, x, w: ops.maximum(2.5 * c + x, x).sum(),
    "weighted": lambda c, x, w: (c * (x + 0.3) + w).max(),
    "next to a sum": lambda c, x, w: (c * x + w).max() + (c * x).sum(),
    "of its columns": lambda c, x, w: ops.tanh(c * 2.5 + x).max(-1).sum() * x,
}


class Compared(Each):
    def __init__(self, read):
        super().__init__(read)
        self.state = cavs.State(h=SIZE)

    def vertex(self, v):
        read = self.read(v.gather().h, v.pull("x"), v.edge("w"))
        h = ops.tanh(v.pull("x") + read @ self.U)
        v.scatter(h=h)
        v.push(h)


@pytest.mark.parametrize("plan", PLANS, ids=["products last", "products in the loop"])
@pytest.mark.parametrize("read", COMPARED)
def test_what_is_compared_is_not_computed_again(read, plan):
    """A child that made it from other pieces might round once more, and not find that it is the
    greatest."""
    for absent in (0.0, 0.4):
        model = Weighted(Compared(COMPARED[read]), SIZE)
        model.initialize(0, np.float64)
        with forced(plan):
            agrees(model, shared(8, graphs=12, absent=absent))


class Scaled(cavs.VertexFunction):
    """Children weighted; with ``more``, a second state that all read alike."""

    def __init__(self, more=False):
        self.more = more
        self.state = cavs.State(h=SIZE, g=SIZE) if more else cavs.State(h=SIZE)

    def vertex(self, v):
        c, y = v.gather(), v.pull("y")
        h = ops.tanh(y + (c.h * v.edge("w")).sum() + (c.h * y).sum())
        if self.more:
            h = h + c.g.sum()
            v.scatter(h=h, g=h * 0.5)
        else:
            v.scatter(h=h)
        v.push(h)


class Down(cavs.VertexFunction):
    """Runs from the roots, weighted by itself."""

    def __init__(self):
        self.state = cavs.State(h=SIZE)

    def vertex(self, v):
        y = v.pull("y")
        h = y + 0.1 * (v.gather().h * y).sum()
        v.scatter(h=h)
        v.push(h)


class Two(cavs.Model):
    """A cell above another: both may read the same, or run in other directions, or the upper one
    may read what is one for the batch."""

    def __init__(self, lower, upper, between=lambda h, x: h):
        self.embedding = nn.Embedding(WORDS, SIZE)
        self.lower, self.upper, self.between = lower, upper, between
        self.output = nn.Linear(SIZE, CLASSES)

    def run(self, cell, batch, y):
        if isinstance(cell, Down):
            return cell(batch.graph.reversed(), y=y)
        return cell(batch.graph, y=y, w=batch["w"])

    def loss(self, batch):
        x = self.embedding(batch["token"])
        h = self.between(self.run(self.lower, batch, x), x)
        return ops.cross_entropy(self.output(self.run(self.upper, batch, h)), batch["label"])


STACKS = {
    "with weights of their own": lambda: Two(Scaled(), Scaled()),
    "with the same weights": lambda: Two(Scaled(), Scaled(True)),
    "that pull the same": lambda: Two(Scaled(True), Scaled(True), lambda h, x: x + 0.0 * h),
    "downwards and up": lambda: Two(Down(), Scaled()),
    "up and downwards": lambda: Two(Scaled(), Down()),
    "downwards twice": lambda: Two(Down(), Down()),
    "next to a mean of all rows": lambda: Two(
        Scaled(), Scaled(), lambda h, x: x * ops.mean_rows(h)
    ),
}


@pytest.mark.parametrize("plan", PLANS, ids=["products last", "products in the loop"])
@pytest.mark.parametrize("stack", STACKS)
def test_cells_above_each_other(stack, plan):
    model = STACKS[stack]()
    model.initialize(0, np.float64)
    for absent in (0.0, 0.4):
        with forced(plan):
            agrees(model, shared(9, absent=absent))


class Linear(cavs.VertexFunction):
    """Wide values of edges; draws of dropout at them; a product for each."""

    def __init__(self, how):
        self.how, self.dropout = how, nn.Dropout(0.5)
        self.state = cavs.State(h=SIZE)
        self.U = cavs.Parameter((SIZE, SIZE))

    def vertex(self, v):
        c = v.gather()
        read = c.h * v.edge("w") if self.how == "feature" else self.dropout(c.h)
        h = ops.tanh(v.pull("x") + read.sum() @ self.U)
        v.scatter(h=h)
        v.push(h)


@pytest.mark.parametrize("how", ["feature", "dropout"])
def test_what_has_a_wide_row_for_each_edge_anyway_stays(how):
    rng = np.random.default_rng(0)
    children = [[], [], [0, 1], [2, 0, 1]]
    features = {"token": [1, 2, -1, -1], "label": [0, 1, 2, 3]}
    w = rng.normal(size=(5, SIZE))
    batch = cavs.batch([cavs.Graph(children, features, edge_features={"w": w})] * 2)
    model = Weighted(Linear(how), SIZE)
    model.initialize(0, np.float64)
    with forced(PLANS[0]):
        session, _ = agrees(model, batch)
        assert not sums(session, batch)


def test_what_a_step_holds_is_what_the_compiler_says():
    """A maximum over merged vertices with losses at roots; the other plan stores a third more."""

    class Greatest(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=40)
            self.U = cavs.Parameter((40, 40))

        def vertex(self, v):
            h = ops.tanh(v.pull("x") + v.gather().h.max() @ self.U)
            v.scatter(h=h)
            v.push(h)

    trees = treebank(25)
    batch = cavs.batch(
        [
            cavs.Graph(g.topology, {"token": g.features["token"]}, graph_features={"label": i % 5})
            for i, g in enumerate(trees.graphs)
        ]
    )
    plain, less = (
        cavs.explain(
            OfRoots(Greatest(), 40, 40), batch, passes=Passes(merge_vertices=True, save_memory=on)
        )
        for on in (False, True)
    )
    assert less.run.peak_bytes < 0.77 * plain.run.peak_bytes
    assert "sum over parents of" in less.program
    assert "sum over parents of" not in plain.program
    # A kernel of the CPU alone has no text for devices.
    assert len(less.cuda) < len(less.kernels) and len(plain.cuda) == len(plain.kernels)


def test_the_oracle_reads_what_edges_hold():
    """The interpreter of the rewritten graph gives what that of the traced one gives."""
    from cavs.ir.interpret import interpret
    from cavs.passes.backward.share_cotangents import share_cotangents
    from cavs.passes.backward.sum_cotangents_at_child import (
        edge_cotangent_slots,
        sum_cotangents_at_child,
    )
    from cavs.passes.simplify import simplify
    from tests.oracle import inputs_of

    model, batch = Weighted(Each(READS["of the parent too"]), SIZE), shared(7)
    model.initialize(0, np.float64)
    before, expected = reference(model, batch)
    alike = share_cotangents(simplify(before))
    after = simplify(sum_cotangents_at_child(alike, edge_cotangent_slots(alike)))
    assert {"gather_out", "sum_out"} <= {n.op.name for n in after.nodes()}
    found = interpret(after, inputs_of(batch))
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert_close(found[key], values, 1e-12, key)


def test_a_long_chain_of_exact_operators_takes_no_longer_than_it_is():
    """Each reads the one before twice; what is compared at its end rounds nothing."""

    def chain(c, x, w):
        for _ in range(40):
            c = ops.maximum(c, ops.minimum(c, x))
        return c

    model = Weighted(Each(chain, fold="max"), SIZE)
    model.initialize(0, np.float64)
    session = cavs.Session(model)
    with forced(PLANS[0]):
        assert sums(session, shared(11))
