"""Check that every graph that a pass returns is well formed."""

from __future__ import annotations

from cavs.errors import FAULT, CompileError
from cavs.ir.graph import Graph
from cavs.ir.node import Node
from cavs.ir.op import REGISTRY, BatchRule
from cavs.ir.printer import number, print_node


def _fail(graph: Graph, node: Node, name: str, reason: str) -> None:
    names = number(graph)
    raise CompileError(
        f"after pass {name}: {reason}\n  in {print_node(node, names)}",
        where=node.where,
        hint=FAULT,
    )


def verify(graph: Graph, name: str) -> Graph:
    """Return ``graph``, or raise CompileError with the equation and the user's line."""
    for node in graph.nodes():
        if not node.checked:  # by an earlier pass: nodes are immutable
            _check(graph, node, name)
        if node.op.reads_slot:
            slot = node.attr("slot")
            if slot not in graph.slots:
                _fail(graph, node, name, f"slot {slot} has no value")
            if slot.backward is (node.op.name == "gather"):
                _fail(graph, node, name, f"slot {slot} is read in the wrong direction")
    for slot, source in graph.slots.items():
        if source.shape != slot.shape:
            _fail(graph, source, name, f"slot {slot} holds {slot.shape}")
        domain = source.type.domain
        if (domain.base, domain.structure) != (slot.base, slot.structure.of):
            _fail(graph, source, name, f"slot {slot} is fed by {domain} rows")
    return graph


def _check(graph: Graph, node: Node, name: str) -> None:
    """Check ``node`` and its inputs, independently of their graph."""
    if REGISTRY.get(node.op.name) is not node.op:
        _fail(graph, node, name, f"unknown operator {node.op.name}")
    try:
        inferred = node.op.infer([x.type for x in node.inputs], dict(node.attrs))
    except (LookupError, TypeError, ValueError) as error:
        reason = str(error.args[0]) if error.args else ""  # a cure may follow
        if isinstance(error, KeyError):
            reason = f"attribute {reason} is missing"
        _fail(graph, node, name, reason)
    if node.op.name != "constant" and inferred != node.type:
        _fail(graph, node, name, f"type {node.type}, inferred {inferred}")
    rank = node.type.domain.rank
    if node.op.rule is BatchRule.ROWWISE and any(x.type.domain.rank > rank for x in node.inputs):
        _fail(graph, node, name, "a rowwise operator reads rows finer than its own")
    node.checked = True
