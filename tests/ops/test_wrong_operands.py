"""Operators that read through the structure, or cut rows, refuse operands of other rows."""

from __future__ import annotations

import re

import pytest

import cavs
from cavs import ops
from cavs.errors import ShapeError, TraceError
from cavs.ir import (
    EDGE,
    FLOAT,
    GRAPH,
    INT,
    ONE,
    OUT,
    REGISTRY,
    VERTEX,
    Domain,
    Link,
    apply,
    defop,
)
from cavs.ops.primitives import NUMPY, primitive_of


def value(domain=VERTEX, shape=(4,), dtype=FLOAT):
    return apply("feature", name="x", dtype=dtype, shape=shape, domain=domain, optional=False)


ROWS, MATRIX = value(), cavs.Parameter((6, 4))
LABELS = value(shape=(), dtype=INT)
ONE_EACH, LISTS = Link("spelling", "words", "chars", True), Link("all", "words", "chars", False)
WORDS, CHARS = Domain("vertex", None, "words"), Domain("vertex", None, "chars")
LABELLED, DISTINCT = Domain("present", "label"), Domain("distinct", "label")

REFUSED = {
    "sum_children of vertices": (
        lambda: apply("sum_children", ROWS),
        "[sum_children] needs a value of every child, as v.gather() gives: f32[4]",
    ),
    "sum_out of edges at their parents": (
        lambda: apply("sum_out", value(EDGE)),
        "[sum_out] needs a value of every edge that leaves a vertex: f32[4]",
    ),
    "sum_vertices of graphs": (
        lambda: apply("sum_vertices", value(GRAPH)),
        "[sum_vertices] needs a value of every vertex",
    ),
    "sum_members of one kind": (
        lambda: apply("sum_members", value(VERTEX.of_kind(2)), members="roots"),
        "[sum_members] needs a value of every vertex",
    ),
    "to_members of vertices": (
        lambda: apply("to_members", ROWS, members="roots"),
        "[to_members] needs a value of every graph",
    ),
    "take of edges": (
        lambda: apply("take", value(EDGE), domain=LABELLED),
        "[take] needs a value of every vertex",
    ),
    "place of vertices": (
        lambda: apply("place", ROWS),
        "[place] needs a value of the vertices that have a feature",
    ),
    "take_distinct of vertices": (
        lambda: apply("take_distinct", ROWS, domain=VERTEX),
        "[take_distinct] needs a value of the distinct indices of vertices",
    ),
    "take_distinct at edges": (
        lambda: apply("take_distinct", value(DISTINCT), domain=EDGE),
        "[take_distinct] needs a value of the distinct indices of vertices",
    ),
    "take_linked of the readers": (
        lambda: apply("take_linked", value(WORDS), link=ONE_EACH),
        "[take_linked] needs a value of every vertex of 'chars'",
    ),
    "sum_readers of those read": (
        lambda: apply("sum_readers", value(CHARS), link=ONE_EACH),
        "[sum_readers] needs a value of every vertex of 'words'",
    ),
    "take_pairs of the readers": (
        lambda: apply("take_pairs", value(WORDS), domain=LISTS.pairs),
        "[take_pairs] needs a value of every vertex of 'chars'",
    ),
    "sum_pairs of vertices": (
        lambda: apply("sum_pairs", value(WORDS)),
        "[sum_pairs] needs a value of every pair of a link",
    ),
    "an lstm over edges": (
        lambda: apply("lstm", value(EDGE), hidden=4, number=0, pieces=()),
        "[lstm] needs one row of floats for every vertex",
    ),
    "an lstm of matrices": (
        lambda: apply("lstm", value(shape=(2, 4)), hidden=4, number=0, pieces=()),
        "[lstm] needs one row of floats for every vertex",
    ),
    "a slice past the end": (
        lambda: apply("slice", ROWS, start=2, stop=5),
        "[slice] slice 2:5 of 4 elements",
    ),
    "an empty slice": (
        lambda: apply("slice", ROWS, start=2, stop=2),
        "[slice] slice 2:2 of 4 elements",
    ),
    "rows of vertices": (
        lambda: apply("rows", ROWS, start=0, stop=1),
        "[rows] only a parameter matrix has rows to cut",
    ),
    "rows past the end": (
        lambda: apply("rows", MATRIX, start=4, stop=7),
        "[rows] rows 4:7 of 6",
    ),
    "broadcast to fewer rows": (
        lambda: apply("broadcast", ROWS, shape=(4,), domain=GRAPH),
        "[broadcast] vertex does not broadcast to graph",
    ),
    "a sum that leaves its window": (
        lambda: apply("sum_rows", ROWS, at=(3,), shape=(6,)),
        "[sum_rows] [4] at [3] leaves [6]",
    ),
    "types that overlap": (
        lambda: apply(
            "merge_types",
            value(VERTEX.of_type("a")),
            types=("b",),
            shape=(4,),
            domain=VERTEX,
        ),
        "[merge_types] a value of every vertex.a for the type 'b' of vertex",
    ),
    "labelled rows and all": (
        lambda: value(LABELLED) + ROWS,
        "[add] rows of present.label cannot be combined with others",
    ),
    "edges at both ends": (
        lambda: value(EDGE) + value(OUT),
        "[add] values of edges at parents and at children cannot be combined",
    ),
    "slopes of a loss as rows": (
        lambda: apply("cross_entropy_grad", ROWS, LABELS, value()),
        "[cross_entropy_grad] the slope of a loss is one float per row, not f32[4]@vertex",
    ),
    "logits of matrices": (
        lambda: ops.cross_entropy(value(shape=(2, 4)), LABELS),
        "[cross_entropy_rows] logits must have one axis per row, the classes",
    ),
    "a table that is no parameter": (
        lambda: ops.lookup(ROWS, LABELS),
        "[lookup] the table must be a parameter of two axes",
    ),
    "a table of one axis": (
        lambda: ops.lookup(cavs.Parameter(6), LABELS),
        "[lookup] the table must be a parameter of two axes",
    ),
    "matrices of several heights": (
        lambda: ops.concat([value(shape=(2, 4)), value(shape=(3, 4))]),
        "[concat] sizes differ outside the concatenated axis: f32[2,4], f32[3,4]",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_rows_are_refused_with_their_type(case):
    call, found = REFUSED[case]
    with pytest.raises(ShapeError, match=re.escape(found)) as raised:
        call()
    assert raised.value.where.startswith("test_wrong_operands.py:")


def test_a_softmax_over_readers_needs_one_vertex_each():
    with pytest.raises(TraceError, match=r"\[softmax_readers\] needs a link to one .* 'all' leads"):
        ops.softmax_readers(value(WORDS), LISTS)
    weights = ops.softmax_readers(value(WORDS), ONE_EACH)
    assert weights.type == value(WORDS).type


@pytest.mark.parametrize("name", ["max_graph", "softmax_graph"])
def test_zeros_of_other_types_are_no_maximum(name):
    of_joins = value(VERTEX.of_type("join"))
    found = re.escape(f"[{name}] needs values of all vertices, not of those of the type 'join'")
    with pytest.raises(TraceError, match=found) as raised:
        getattr(ops, name)(of_joins)
    assert "push a value at every type" in raised.value.hint
    assert ops.sum_graph(of_joins).type.domain == GRAPH  # zeros add nothing


@pytest.mark.parametrize("loss", [ops.mean_squared_error, ops.binary_cross_entropy])
def test_predictions_and_targets_of_sizes_that_do_not_broadcast(loss):
    found = re.escape(f"[{loss.__name__}] predictions of shape [4], targets of shape [3]")
    with pytest.raises(ShapeError, match=found):
        loss(ROWS, value(shape=(3,)))


def test_an_operator_is_defined_once():
    before = REGISTRY["tanh"]
    with pytest.raises(ValueError, match="operator 'tanh' is defined twice"):
        defop("tanh", infer=before.infer)
    assert REGISTRY["tanh"] is before


def test_a_primitive_that_does_not_exist():
    with pytest.raises(AttributeError, match=r"no primitive 'sinh': there are .*tanh") as raised:
        primitive_of("sinh")
    with pytest.raises(AttributeError, match=re.escape(str(raised.value))):
        NUMPY.sinh  # noqa: B018


def test_values_of_no_rows_are_combined_with_all():
    """One row is not refused among labelled rows."""
    scale = value(ONE)
    assert (value(LABELLED) * scale).type.domain == LABELLED
