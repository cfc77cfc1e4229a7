"""Cut zeros out of the products and sums that are terms of gradients."""

from __future__ import annotations

from itertools import product

from cavs.ir import Graph, Node, apply, users
from cavs.passes.trim_products import columns, nonzero, size


def trim_gradients(graph: Graph) -> Graph:
    """Replace terms of gradients (see `split_gradients`) by sums into the part that is not zero.

    Only nodes that are a term of one gradient and nothing else are replaced.
    """
    readers = users(graph.nodes())
    roots = graph.roots()
    outputs: dict[str, Node] = {}
    for key, n in graph.outputs.items():
        alone = n not in readers and roots.count(n) == 1
        summed = n.op.windowed and len(n.inputs[0].shape) == 1
        kept = [nonzero(x) for x in n.inputs] if key.startswith("grad:") and summed else []
        if not alone or all(
            size(ranges) == x.shape[-1] for x, ranges in zip(n.inputs, kept, strict=False)
        ):
            outputs[key] = n
            continue
        for i, window in enumerate(product(*kept)):
            inputs = [columns(x, [r]) for x, r in zip(n.inputs, window, strict=True)]
            at = tuple(low for low, _ in window)
            outputs[f"{key}.{i}"] = apply(n.op.name, *inputs, at=at, shape=n.shape)
    return Graph(outputs, dict(graph.slots))
