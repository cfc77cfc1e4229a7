"""Small models as graphs, and their equations, for the tests of the passes."""

from __future__ import annotations

from cavs.compiler.pipeline import CompileOptions, Passes, compile_graph
from cavs.frontend.batch import Feature
from cavs.frontend.model import trace_model
from cavs.ir import VERTEX, Graph, apply
from cavs.ir.printer import number, print_node
from cavs.passes.differentiate import differentiate
from cavs.passes.simplify import simplify
from cavs.passes.specialise import Kind, specialise
from tests.runtime.trees import Classifier

SCHEMA = {
    "token": Feature("vertex", "int", (), True),
    "a": Feature("vertex", "float", (6,)),
    "b": Feature("vertex", "float", (6,)),
    "label": Feature("vertex", "int"),
}
LEAF, INNER = 2, 1  # keys of kinds: a word and no children; children and no word


def equations(graph, op=None, kind=None):
    """Equations without names and lines, of one operator or kind of vertex."""
    names = number(graph)
    lines = []
    for n in graph.nodes():
        if (op is None or n.op.name == op) and (kind is None or n.type.domain.kind == kind):
            named = {x: x.attr("parameter").name for x in n.inputs if x.op.name == "parameter"}
            lines.append(print_node(n, {**names, **named}).split(" = ", 1)[1])
    return lines


def traced(cell=None, training=True, rate=0.0):
    model = Classifier(cell, rate=rate)
    return simplify(trace_model(model, SCHEMA, training=training))


def by_kind(cell=None, training=True):
    graph = traced(cell)
    if training:
        graph = simplify(differentiate(graph))
    return simplify(specialise(graph, [Kind.of(k, ("token",)) for k in (INNER, LEAF)]))


def value(name):
    """A feature as a value: rows of 6 floats."""
    where = {"dtype": "f32", "shape": (6,), "optional": False}
    return apply("feature", name=name, domain=VERTEX, **where)


def simplified(node):
    """Return the equations of one value after the passes."""
    return simplify(Graph({"y": node})).outputs["y"]


def compiled(cell=None, passes=None, training=True, kinds=(INNER, LEAF)):
    model = Classifier(cell)
    graph = trace_model(model, SCHEMA, training=training)
    names = list(model.parameters())
    options = CompileOptions(training=training, passes=passes or Passes(), record=True)
    return compile_graph(graph, kinds, names, options)
