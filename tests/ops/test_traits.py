"""The traits that operators declare are true, for every operator of the registry."""

from __future__ import annotations

import inspect
import itertools

import numpy as np
import pytest

from cavs.ir import (
    EDGE,
    FLOAT,
    GRAPH,
    INT,
    ONE,
    OUT,
    REGISTRY,
    VERTEX,
    BatchRule,
    Domain,
    Graph,
    Link,
    Slot,
    Structure,
    apply,
)
from cavs.ir.interpret import Inputs, interpret
from cavs.passes.rules import constant_of, zeros
from cavs.passes.simplify import simplify_node

# Vertices 0 and 1 are leaves of graph 0 with root 2; vertex 3 is graph 1.
BATCH = {
    "offsets": [0, 0, 0, 2, 2],
    "children": [0, 1],
    "graph_of": [0, 0, 0, 1],
    "types": ["a", "b", "c", "a"],
    "links": {"one": [[1], [], [0], [1]], "some": [[1, 2], [], [0], [1, 1]]},
}
ONE_EACH, LISTS = Link("one", "", "", True), Link("some", "", "", False)
PAIRS = Domain("pair", None, "", LISTS)
ROWS = {"vertex": 4, "edge": 2, "graph": 2, "present": 4, "distinct": 4, "pair": 5}
LABELS = np.array([2, -1, 0, 1])
LABELLED = Domain("present", "label")
SLOT = Slot("s", Structure("cell"), (4,), backward=True)
RNG = np.random.default_rng(0)


class Matrix:
    """A parameter of the interpreter."""

    def __init__(self, shape):
        self.shape, self.value = shape, RNG.normal(size=shape)

    def current(self):
        return self.value


LABEL = apply("feature", name="label", dtype=INT, shape=(), domain=VERTEX, optional=True)
# Operands of an operator other than rows of vertices, as domains and shapes, and its attributes.
VECTOR, MATRIX = (VERTEX, (4,)), (ONE, (4, 4))
EDGES = ((EDGE, (4,)),)
CASES = {
    "matmul": ((VECTOR, MATRIX), {}),
    "matmul_tn": ((VECTOR, VECTOR), {}),
    "transpose": ((MATRIX,), {}),
    "rows": ((MATRIX,), {"start": 1, "stop": 3}),
    "pad_rows": ((MATRIX,), {"start": 1, "size": 6}),
    "lookup": ((MATRIX, LABEL), {}),
    "lookup_grad": ((VECTOR, LABEL), {"rows": 3}),
    "cross_entropy_grad": ((VECTOR, LABEL, (VERTEX, ())), {}),
    "slice": ((VECTOR,), {"start": 1, "stop": 3}),
    "pad": ((VECTOR,), {"start": 1, "size": 6}),
    "concat": ((VECTOR, VECTOR), {"axis": -1}),
    "reshape": ((VECTOR,), {"shape": (2, 2)}),
    "broadcast": ((VECTOR,), {"shape": (3, 4), "domain": VERTEX}),
    "power": ((VECTOR,), {"exponent": 1.5}),
    "uniform": ((), {"stream": 1, "shape": (4,), "domain": VERTEX}),
    "sum_children": (EDGES, {}),
    "max_children": (EDGES, {}),
    "product_children": (EDGES, {}),
    "column_number": ((), {"size": 4}),
    "nth_child": (EDGES, {"k": 1}),
    "to_nth_child": ((VECTOR,), {"k": 1}),
    "sum_members": ((VECTOR,), {"members": "roots"}),
    "to_members": (((GRAPH, (4,)),), {"members": "leaves"}),
    "take": ((VECTOR,), {"domain": LABELLED}),
    "place": (((LABELLED, (4,)),), {}),
    "take_distinct": (((Domain("distinct", "label"), (4,)),), {"domain": VERTEX}),
    "merge": ((VECTOR,), {"kinds": (0,), "shape": (4,), "domain": VERTEX}),
    "merge_types": ((VECTOR, VECTOR), {"types": ("a", "b"), "shape": (4,), "domain": VERTEX}),
    "take_pairs": ((VECTOR,), {"domain": PAIRS}),
    "sum_pairs": (((PAIRS, (4,)),), {}),
    "take_linked": ((VECTOR,), {"link": ONE_EACH}),
    "sum_linked": ((VECTOR,), {"link": LISTS}),
    "sum_readers": ((VECTOR,), {"link": LISTS}),
    "max_readers": ((VECTOR,), {"link": LISTS}),
    "gather": ((), {"slot": Slot("f", SLOT.structure, (4,)), "domain": EDGE}),
}


def case_of(op):
    if op.name in CASES:
        return CASES[op.name]
    arity = len(inspect.signature(op.expr).parameters) - 1 if op.elementwise else 1
    return (VECTOR,) * arity, {}


def inputs_of(op):
    """Nodes to apply ``op`` to, and the arrays behind those that hold floats."""
    nodes, arrays = [], {}
    for i, spec in enumerate(case_of(op)[0]):
        if spec is LABEL:
            nodes.append(LABEL)
        elif spec[0] == ONE:
            matrix = Matrix(spec[1])
            nodes.append(apply("parameter", parameter=matrix))
            arrays[i] = matrix.value
        else:
            domain, shape = spec
            attrs = {"dtype": FLOAT, "shape": shape, "domain": domain, "optional": False}
            nodes.append(apply("feature", name=f"x{i}", **attrs))
            arrays[i] = RNG.normal(size=(ROWS[domain.base], *shape))
    return nodes, arrays


def result(op, nodes, arrays):
    for node, array in zip(nodes, arrays.values(), strict=False):
        if node.op.name == "parameter":
            node.attr("parameter").value = array
    attrs = case_of(op)[1]
    features = {f"x{i}": a for i, a in arrays.items()} | {"label": LABELS}
    slots = {}
    if op.name == "sum_out":
        slots[SLOT] = apply("gather", slot=CASES["gather"][1]["slot"], domain=EDGE)
        slots[CASES["gather"][1]["slot"]] = nodes[0]
        nodes = [apply("gather_out", slot=SLOT, domain=OUT)]
    graph = Graph({"y": apply(op.name, *nodes, **attrs)}, slots)
    return interpret(graph, Inputs(**BATCH, features=features))["y"]


def of(fits):
    return pytest.mark.parametrize("name", [n for n, op in REGISTRY.items() if fits(op)])


@of(lambda op: op.linear_in)
def test_linear_in_each_of_these_inputs(name):
    op = REGISTRY[name]
    nodes, arrays = inputs_of(op)
    for i in op.linear_in:
        other = RNG.normal(size=arrays[i].shape)
        a, b, both = (
            result(op, nodes, arrays | {i: x})
            for x in (arrays[i], other, 2.0 * arrays[i] - 3.0 * other)
        )
        np.testing.assert_allclose(both, 2.0 * a - 3.0 * b, rtol=1e-12, atol=1e-12)
        assert np.any(a != 0)


@of(lambda op: op.jointly_linear)
def test_jointly_linear_in_all_inputs(name):
    op = REGISTRY[name]
    nodes, a = inputs_of(op)
    b = {i: RNG.normal(size=x.shape) for i, x in a.items()}
    both = result(op, nodes, {i: 2.0 * a[i] - 3.0 * b[i] for i in a})
    expected = 2.0 * result(op, nodes, a) - 3.0 * result(op, nodes, b)
    np.testing.assert_allclose(both, expected, rtol=1e-12, atol=1e-12)


@of(lambda op: op.linear_in and not op.elementwise)
def test_zeros_of_a_linear_operator_are_folded(name):
    op = REGISTRY[name]
    nodes, _ = inputs_of(op)
    if name == "sum_out":
        nodes = [apply("gather_out", slot=SLOT, domain=OUT)]
    for i in op.linear_in:
        inputs = [zeros(x.type) if i == j else x for j, x in enumerate(nodes)]
        node = apply(name, *inputs, **case_of(op)[1])
        folded = simplify_node(node)
        assert constant_of(folded) == 0.0
        assert folded.type == node.type


NUMBERS = (-1e3, -2.0, -1.0, -1e-300, 0.0, 1e-300, 0.5, 1.0, 1e3)


def values_and_slopes(op):
    """The values of ``op`` at all combinations of NUMBERS, and its slopes by each input."""
    nodes, _ = inputs_of(op)
    grid = np.array(list(itertools.product(NUMBERS, repeat=len(nodes)))).T
    node = apply(op.name, *nodes, **case_of(op)[1])
    with np.errstate(all="ignore"):
        rows = [np.resize(x, (len(x), 4)) for x in (np.repeat(g[:, None], 4, 1) for g in grid)]
        value = np.stack([op.evaluate(node, *row) for row in zip(*rows, strict=True)])
        features = {f"x{i}": x for i, x in enumerate(rows)}
        n = len(rows[0]) if rows else 1
        batch = Inputs([0] * (n + 1), [], range(n), features=features)
        d = apply("broadcast", 1.0, shape=node.shape, domain=VERTEX)
        slopes = [s for s in op.vjp(node, d) if s is not None]
        graph = Graph({str(i): s for i, s in enumerate(slopes)})
        return grid, value, list(interpret(graph, batch).values())


@of(lambda op: op.elementwise and op.vjp is not None and op.name not in ("uniform", "constant"))
def test_total_operators_and_no_others_are_finite_with_their_slopes(name):
    op = REGISTRY[name]
    _, value, slopes = values_and_slopes(op)
    assert op.total == all(np.isfinite(x).all() for x in (value, *slopes))


@of(lambda op: op.exact)
def test_exact_operators_round_nothing(name):
    op = REGISTRY[name]
    grid, value, _ = values_and_slopes(op)
    for operands, row in zip(grid.T, value, strict=True):
        assert set(row.ravel()) <= {0.0, 1.0, *operands, *-operands}
    if op.comparison:
        assert set(value.ravel()) == {0.0, 1.0}


@of(lambda op: op.same_row)
def test_a_same_row_has_the_elements_of_its_input_in_order(name):
    nodes, arrays = inputs_of(REGISTRY[name])
    found = result(REGISTRY[name], nodes, arrays)
    np.testing.assert_array_equal(found.reshape(arrays[0].shape), arrays[0])


# The rows of gather are edges, and a leaf has none.
@of(lambda op: op.zero_at_leaves and op.name != "gather")
def test_zero_at_leaves(name):
    op = REGISTRY[name]
    if name == "num_children":
        found = interpret(Graph({"y": apply(name)}), Inputs(**BATCH, features={}))["y"]
    else:
        found = result(op, *inputs_of(op))
    if found.shape[0] == ROWS["vertex"]:
        assert not found[[0, 1, 3]].any() and found[2].any()


@of(lambda op: op.one_at_leaves)
def test_one_at_leaves(name):
    found = result(REGISTRY[name], *inputs_of(REGISTRY[name]))
    np.testing.assert_array_equal(found[[0, 1, 3]], 1.0)
    assert (found[2] != 1.0).all()


@of(lambda op: op.reduction)
def test_reductions_of_equal_values(name):
    op = REGISTRY[name]
    nodes, arrays = inputs_of(op)
    found = result(op, nodes, {0: np.ones_like(arrays[0])})
    assert (found.max() > 1) == (op.reduction == "sum" and name != "sum_members")
    assert op.reduces_axis is (op.rule is BatchRule.ROWWISE)
    assert op.reduces_segments is (op.rule is BatchRule.GRAPH)


@of(lambda op: op.windowed)
def test_a_window_of_a_larger_sum(name):
    op = REGISTRY[name]
    nodes, arrays = inputs_of(op)
    plain = apply(name, *nodes)
    features = {f"x{i}": a for i, a in arrays.items()}
    whole = tuple(s + 3 for s in plain.shape)
    placed = apply(name, *nodes, at=(2,) * len(whole), shape=whole)
    found = interpret(Graph({"a": plain, "b": placed}), Inputs(**BATCH, features=features))
    window = (slice(2, 6),) * len(whole)
    np.testing.assert_array_equal(found["b"][window], found["a"])
    found["b"][window] = 0
    assert not found["b"].any()
