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
# attrs: name, dtype, shape, domain, optional (integer features: -1 occurs, the value is absent),
# and vertex_type if it belongs to a type: its rows are those of the vertices of the type.
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
    attrs = {"name": name, "dtype": dtype, "shape": shape, "domain": domain, "optional": optional}
    if domain.vertex_type is not None:
        attrs["vertex_type"] = domain.vertex_type
    return apply("feature", **attrs)


def _lookup_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    table, index = types
    if table.domain != ONE or len(table.shape) != 2:
        raise ValueError("the table must be a parameter of two axes")
    if index.dtype != INT:
        raise TypeError("the index must be an integer feature", TO_INTEGERS)
    if len(index.shape) > 1:
        raise ValueError(
            "the index must be one integer per row, or several in one axis",
            "give the rows of the feature one axis: rows.reshape(len(rows), -1)",
        )
    return TensorType(FLOAT, (*index.shape, *table.shape[1:]), index.domain)


def _lookup_evaluate(node: Node, table: Any, index: Any) -> Any:
    absent = np.expand_dims(np.asarray(index) < 0, -1)
    return np.where(absent, 0.0, table[np.maximum(index, 0)])


# Row `index` of a table, or a row for each of several indices; zeros where an index is absent (-1).
defop(
    "lookup",
    infer=_lookup_infer,
    vjp=lambda n, d: (apply("lookup_grad", d, n.inputs[1], rows=n.inputs[0].shape[0]), None),
    evaluate=_lookup_evaluate,
    cost=2,
    view=True,
    linear_in=(0,),
)


def _lookup_grad_evaluate(node: Node, d: Any, index: Any) -> Any:
    result = np.zeros(node.shape)
    present = np.asarray(index) >= 0
    np.add.at(result, np.asarray(index)[present], np.asarray(d)[present])
    return result


def _lookup_grad_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    d, index = types
    return TensorType(FLOAT, (attrs["rows"], *d.shape[len(index.shape) :]), ONE)


# The gradient of the table: only the rows looked up are not zero.
defop(
    "lookup_grad",
    infer=_lookup_grad_infer,
    evaluate=_lookup_grad_evaluate,
    rule=BatchRule.REDUCE,
    linear_in=(0,),
    reads=Reads.ONE_ROW_EACH,
)


def lookup(table: Any, index: Any) -> Node:
    """Row ``index`` of ``table`` (rows, width), a parameter; zeros where the index is -1.

    An index feature of k columns gives a value of shape (k, width). TraceError for a table that is
    computed.
    """
    node = as_node(table)
    if node.type.domain == ONE and node.op.name != "parameter":
        raise TraceError(
            f"rows are looked up in a parameter, not in what {node.op.name!r} makes: {node.type}",
            where=user_line(),
            hint="look rows up first, and compute with them: tanh(lookup(P, i))",
        )
    return apply("lookup", node, index)
