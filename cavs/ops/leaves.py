"""Inputs of the program: parameters, features of the input graphs, rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cavs.errors import TraceError, user_line
from cavs.ir import (
    FLOAT,
    INT,
    ONE,
    ONE_COLUMN,
    TO_INTEGERS,
    BatchRule,
    Domain,
    Node,
    Reads,
    TensorType,
    apply,
    as_node,
    defop,
)

# attrs: parameter, the frontend's Parameter (compared by identity).
defop(
    "parameter",
    infer=lambda types, attrs: TensorType(FLOAT, attrs["parameter"].shape, ONE),
    cost=0,
    view=True,
    program_input=True,
)
# attrs: name, dtype, shape, domain, optional (integer features: -1 occurs, the value is absent).
defop(
    "feature",
    infer=lambda types, attrs: TensorType(attrs["dtype"], attrs["shape"], attrs["domain"]),
    cost=0,
    view=True,
    program_input=True,
)


def feature(
    name: str,
    domain: Domain,
    dtype: str = FLOAT,
    shape: tuple[int, ...] = (),
    optional: bool = False,
) -> Node:
    """Return the feature ``name``: a row of ``shape`` for each vertex, edge or graph of a batch."""
    return apply("feature", name=name, dtype=dtype, shape=shape, domain=domain, optional=optional)


def _lookup_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    table, index = types
    if table.domain != ONE or len(table.shape) != 2:
        raise ValueError("the table must be a parameter of two axes")
    if index.dtype != INT:
        raise TypeError("the index must be an integer feature", TO_INTEGERS)
    if index.shape:
        raise ValueError("the index must be one integer per row", ONE_COLUMN)
    return TensorType(FLOAT, table.shape[1:], index.domain)


# Row `index` of a table; zeros where the index is absent (-1).
defop(
    "lookup",
    infer=_lookup_infer,
    vjp=lambda n, d: (apply("lookup_grad", d, n.inputs[1], rows=n.inputs[0].shape[0]), None),
    evaluate=lambda n, table, index: table[int(index)] if index >= 0 else np.zeros(n.shape),
    cost=2,
    view=True,
    linear_in=(0,),
)


def _lookup_grad_evaluate(node: Node, d: Any, index: Any) -> Any:
    result = np.zeros(node.shape)
    if index >= 0:
        result[int(index)] = d
    return result


# The gradient of the table: only the rows looked up are not zero.
defop(
    "lookup_grad",
    infer=lambda types, attrs: TensorType(FLOAT, (attrs["rows"], *types[0].shape), ONE),
    evaluate=_lookup_grad_evaluate,
    rule=BatchRule.REDUCE,
    linear_in=(0,),
    reads=Reads.ONE_ROW_EACH,
)


def lookup(table: Any, index: Any) -> Node:
    """Row ``index`` of ``table`` (rows, width), a parameter; zeros where the index is -1.

    TraceError for a computed table.
    """
    node = as_node(table)
    if node.type.domain == ONE and node.op.name != "parameter":
        raise TraceError(
            f"rows are looked up in a parameter, not in what {node.op.name!r} makes: {node.type}",
            where=user_line(),
            hint="look rows up first, and compute with them: tanh(lookup(P, i))",
        )
    return apply("lookup", node, index)
