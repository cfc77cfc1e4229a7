"""What a model and a batch tell of the parameters: touched rows, gradients that are products."""

from __future__ import annotations

from typing import Any

import numpy as np

from cavs.data import GraphBatch
from cavs.distributed.strategy.variable import Variable, variables_of
from cavs.frontend.batch import Feature
from cavs.frontend.model import Model, trace_model
from cavs.ir import Graph, Node
from cavs.passes.at_labelled import at_labelled


def measured_variables(
    model: Model, batch: GraphBatch | None, *, dtype: str = "float32"
) -> tuple[Variable, ...]:
    """The trainable parameters of `model`, with what one replica's `batch` shows.

    rows: different rows that the batch looks up. factors: rows of the products whose gradient the
    parameter's is, those with a label where a loss alone reads them; the compiler drops some more
    (children of leaves), so it is an upper bound. Without a batch both are unknown.
    """
    if batch is None:
        return variables_of(model, dtype=dtype)
    graph = at_labelled(trace_of(model, batch))
    rows: dict[str, float] = {}
    factors: dict[str, float] = {}
    for name, uses in _uses(graph).items():
        if all(node.op.name == "lookup" for node in uses):
            touched = [batch[n.inputs[1].attr("name")] for n in uses if _is_feature(n.inputs[1])]
            if len(touched) == len(uses):
                seen = np.unique(np.concatenate([values.reshape(-1) for values in touched]))
                rows[name] = float(np.count_nonzero(seen >= 0))
        elif all(_is_product(node, name) for node in uses):
            factors[name] = float(sum(_rows(node, batch) for node in uses))
    return variables_of(model, dtype=dtype, rows=rows, factors=factors)


def trace_of(model: Model, batch: GraphBatch) -> Graph:
    """What `model` computes of batches like `batch` when it is trained."""
    schema = {
        name: Feature(spec.kind, spec.dtype, tuple(spec.shape), spec.has_absent)
        for name, spec in batch.feature_schema().items()
    }
    return trace_model(model, schema, training=True)


def _uses(graph: Graph) -> dict[str, list[Node]]:
    """The nodes that read each parameter, by its name."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes():
        for value in dict.fromkeys(node.inputs):
            if value.op.name == "parameter":
                found.setdefault(_name(value), []).append(node)
    return found


def _name(parameter: Node) -> str:
    named: Any = parameter.attr("parameter")
    return str(named.name)


def _is_feature(node: Node) -> bool:
    return node.op.name == "feature"


def _is_product(node: Node, name: str) -> bool:
    """Whether the node is rows times the parameter, so that its gradient is a sum of products."""
    right = node.inputs[-1]
    return node.op.name == "matmul" and right.op.name == "parameter" and _name(right) == name


def _rows(node: Node, batch: GraphBatch) -> int:
    domain = node.type.domain
    if domain.base == "present":
        return int(np.count_nonzero(batch[str(domain.kind)] >= 0))
    counts = {"vertex": batch.num_vertices, "edge": batch.num_edges, "graph": batch.num_graphs}
    return counts.get(domain.base, 1)
