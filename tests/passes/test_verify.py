"""A pass that returns a broken graph is refused, with its name, whatever is broken."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace

import pytest

from cavs import nn
from cavs.compiler import pipeline, save_memory
from cavs.compiler.memory import Shape
from cavs.compiler.pipeline import CompileOptions, compile_graph
from cavs.errors import CompileError
from cavs.frontend.model import trace_model
from cavs.ir import EDGE, FLOAT, INT, ONE, REGISTRY, VERTEX, Graph, TensorType, apply, make
from cavs.ir.node import Op
from cavs.passes.deduplicate_lookups import RepeatedIndex
from tests.passes.graphs import INNER, LEAF, SCHEMA, value
from tests.runtime.trees import Classifier


def node(name, *inputs, shape=(6,), domain=VERTEX, dtype=FLOAT, **attrs):
    """A node of any type, which no operator has inferred."""
    return make(REGISTRY[name], inputs, attrs, TensorType(dtype, shape, domain))


def slot_of(graph, **changes):
    """The slot of h, or one like it but for ``changes``."""
    (found,) = [s for s in graph.slots if s.name == "h" and not s.backward]
    return replace(found, **changes) if changes else found


def with_output(graph, broken):
    return Graph({**graph.outputs, "broken": broken}, graph.slots)


def with_slot(graph, slot, source):
    return Graph(graph.outputs, {**graph.slots, slot: source})


def at(domain):
    """Rows of a domain: a feature."""
    return apply("feature", name="a", dtype=FLOAT, shape=(6,), optional=False, domain=domain)


def unread(graph):
    """A graph that has lost the slot that its gathers read."""
    return Graph(graph.outputs, {s: n for s, n in graph.slots.items() if s.name != "h"})


def unknown(graph):
    op = Op("no such operator", infer=lambda types, attrs: types[0])
    return with_output(graph, make(op, (value("a"),), {}, value("a").type))


def impostor(graph):
    """An operator with the name of another, of a value that no other test has: nodes are shared."""
    op, x = Op("tanh", infer=lambda types, attrs: types[0]), value("of the impostor")
    return with_output(graph, make(op, (x,), {}, x.type))


def finer(graph):
    """A rowwise operator whose own rule lets it read the edges below a vertex."""
    op = REGISTRY["reads finer rows"]
    return with_output(graph, make(op, (at(EDGE),), {}, TensorType(FLOAT, (6,), VERTEX)))


A, B = value("a"), value("b")
NARROW = A[0:4]
INTEGERS = apply("feature", name="i", dtype=INT, shape=(), optional=False, domain=VERTEX)
BROKEN = {
    "unknown operator": (unknown, "unknown operator no such operator"),
    "impostor": (impostor, "unknown operator tanh"),
    "shapes": (lambda g: with_output(g, node("add", A, NARROW)), r"sizes differ \(6 != 4\)"),
    "dtypes": (lambda g: with_output(g, node("add", A, INTEGERS)), "needs floats, not i32"),
    "kinds": (
        lambda g: with_output(g, node("add", at(VERTEX.of_kind(0)), at(VERTEX.of_kind(1)))),
        r"values of vertex kinds \[0, 1\] cannot be combined",
    ),
    "product": (lambda g: with_output(g, node("matmul", A, B)), "the right side must be"),
    "no edge": (lambda g: with_output(g, node("sum_children", A)), "needs a value of every child"),
    "type": (
        lambda g: with_output(g, node("tanh", A, shape=(7,))),
        re.escape("type f32[7]@vertex, inferred f32[6]@vertex"),
    ),
    "domain": (
        lambda g: with_output(g, node("add", A, B, domain=ONE)),
        re.escape("type f32[6]@one, inferred f32[6]@vertex"),
    ),
    "integers": (
        lambda g: with_output(g, node("tanh", A, dtype=INT)),
        re.escape("type i32[6]@vertex, inferred f32[6]@vertex"),
    ),
    "attribute": (
        lambda g: with_output(g, node("broadcast", A)),
        "attribute domain is missing",
    ),
    "inputs": (lambda g: with_output(g, node("sum_children")), "not enough values"),
    "finer rows": (finer, "a rowwise operator reads rows finer than its own"),
    "no value": (unread, r"slot BinaryTreeLSTM\.h has no value"),
    "other slot": (
        lambda g: with_output(g, apply("gather", slot=slot_of(g, name="x"), domain=EDGE)),
        r"slot BinaryTreeLSTM\.x has no value",
    ),
    "direction": (
        lambda g: with_output(g, apply("gather_grad", slot=slot_of(g), domain=VERTEX)),
        r"slot BinaryTreeLSTM\.h is read in the wrong direction",
    ),
    "backward": (
        lambda g: with_output(
            with_slot(g, s := slot_of(g, backward=True), at(EDGE)),
            apply("gather", slot=s, domain=EDGE),
        ),
        r"slot BinaryTreeLSTM\.h' is read in the wrong direction",
    ),
    "size": (lambda g: with_slot(g, slot_of(g), NARROW), r"slot BinaryTreeLSTM\.h holds \(6,\)"),
    "edges": (
        lambda g: with_slot(g, slot_of(g), at(EDGE)),
        r"slot BinaryTreeLSTM\.h is fed by edge rows",
    ),
    "vertices": (
        lambda g: with_slot(g, slot_of(g, backward=True), A),
        r"slot BinaryTreeLSTM\.h' is fed by vertex rows",
    ),
}


def compiled(cell=nn.BinaryTreeLSTM, **options):
    """Compiles with all passes there are."""
    model = Classifier(cell(8, 6))
    graph = trace_model(model, SCHEMA, training=True)
    everything = dict.fromkeys(
        ("shared_children", "shared_products", "replicated", "recurrent"), True
    )
    options = CompileOptions(training=True, **{"merging": ("",)} | everything | options)
    return compile_graph(graph, (INNER, LEAF), list(model.parameters()), options)


def put_in(monkeypatch, name, function):
    """Run ``function`` in place of a pass."""
    for part in ("FORWARD", "GRADIENTS", "KINDS"):
        passes = getattr(pipeline, part)
        found = [p._replace(function=function) if p.name == name else p for p in passes]
        monkeypatch.setattr(pipeline, part, found)


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_graph_is_refused(monkeypatch, rule):
    broken, reason = BROKEN[rule]
    coarse = Op("reads finer rows", infer=lambda types, attrs: types[0]._replace(domain=VERTEX))
    monkeypatch.setitem(REGISTRY, coarse.name, coarse)
    put_in(monkeypatch, "hoist_products_to_child", broken)
    message = f"^after pass hoist_products_to_child: {reason}"
    with pytest.raises(CompileError, match=message) as error:
        compiled(shared_products=False)
    assert "\n  in %" in str(error.value)  # the equation


PASSES = {p.name: p.function for p in pipeline.PIPELINE if p.name != "trace"}


def test_every_pass_is_in_the_pipeline():
    """Return the imported functions that return graphs."""
    assert {
        name: function
        for name, function in inspect.getmembers(pipeline, inspect.isfunction)
        if function.__module__.startswith("cavs.passes.")
        and function.__annotations__["return"] == "Graph"
    } == PASSES


@pytest.mark.parametrize("name", PASSES)
def test_every_pass_is_verified(monkeypatch, name):
    def broken(graph, *arguments, **options):
        return BROKEN["type"][0](passed(graph, *arguments, **options))

    passed = PASSES[name]
    put_in(monkeypatch, name, broken)
    options = {}
    # These apply only to steps that would store too much.
    if name in ("sum_cotangents_at_child", "fold_constant_cotangents"):
        monkeypatch.setattr(save_memory, "MAX_PEAK", 0.0)
        options = {"cell": nn.TreeAttention, "replicated": False, "shape": Shape(1.0, 2.0)}
    if name == "deduplicate_lookups":
        options = {"repeated": (RepeatedIndex("token", ((LEAF, 3.0),)),)}
    with pytest.raises(CompileError, match=f"^after pass {name}: type "):
        compiled(**options)


def test_a_broken_trace_is_refused_too(monkeypatch):
    graph = BROKEN["type"][0](trace_model(Classifier(), SCHEMA, training=True))
    with pytest.raises(CompileError, match=r"^after pass trace: type "):
        compile_graph(graph, (INNER, LEAF), [], CompileOptions(training=True))


def test_what_is_whole_compiles():
    assert compiled().program.instructions
    assert {"differentiate", "simplify", "trim_gradients"} < set(PASSES)
