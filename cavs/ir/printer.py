"""The text form of a graph, for errors, explain() and tests."""

from __future__ import annotations

from typing import Any

from cavs.ir.graph import Graph
from cavs.ir.node import Node, names_of


def number(graph: Graph) -> dict[Node, str]:
    """Return a name for every node of ``graph``, see `names_of`."""
    return names_of(graph.nodes())


def _attribute(key: str, value: Any) -> str:
    return f"{key}={value!r}" if type(value) in (str, bool, tuple) else f"{key}={value}"


def print_node(node: Node, names: dict[Node, str]) -> str:
    """One equation, as ``%3 = add %1, %2 : f32[4]@vertex``."""
    inputs = ", ".join(names.get(x, "?") for x in node.inputs)
    attrs = ", ".join(_attribute(k, v) for k, v in node.attrs if k not in ("dtype", "optional"))
    text = f"{names.get(node, '?')} = {node.op.name}"
    text += f" {inputs}" if inputs else ""
    text += f" [{attrs}]" if attrs else ""
    return f"{text} : {node.type}"


def print_graph(graph: Graph) -> str:
    """Return every equation, then slots and outputs."""
    names = number(graph)
    lines = [
        print_node(n, names) + (f"    # {n.where}" if n.where else "")
        for n in graph.nodes()
        if n.op.name != "parameter"
    ]
    lines += [f"slot {slot} <- {names[node]}" for slot, node in graph.slots.items()]
    lines += [f"return {key} = {names[node]}" for key, node in graph.outputs.items()]
    return "\n".join(lines)
