"""Split gradients that are sums into their terms."""

from __future__ import annotations

from cavs.ir import Graph, Node, apply
from cavs.passes.rules import as_type


def split_gradients(graph: Graph) -> Graph:
    """Replace each output "grad:NAME" that is a sum by one output per term, "grad:NAME#0", ...

    Each term is then added to the gradient by itself, as soon as it is known. "grad:NAME#1@300" is
    added to the rows from 300 on.
    """
    outputs: dict[str, Node] = {}
    for key, value in graph.outputs.items():
        if not key.startswith("grad:"):
            outputs[key] = value
            continue
        stack, count = [value], 0
        while stack:
            x = stack.pop()
            below = x.inputs[0] if x.op.name == "pad_rows" else x
            sums = below.op.name == "add" and (x is not below or x.type == value.type)
            if sums:  # terms may need a broadcast, such as the slope of a mean
                terms = [as_type(y, below.type) for y in reversed(below.inputs)]
                padded = [y if x is below else apply("pad_rows", y, **dict(x.attrs)) for y in terms]
                stack += padded
            else:
                rows = "" if x is below else f"@{x.attr('start')}"
                outputs[f"{key}#{count}{rows}"] = below
                count += 1
    return Graph(outputs, dict(graph.slots))
