"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cavs.errors import ShapeError, user_line
from cavs.ir import (
    FLOAT,
    ONE,
    TO_FLOATS,
    BatchRule,
    Node,
    Reads,
    TensorType,
    apply,
    as_node,
    defop,
)
from cavs.ops.reduce import place, placed_type

_MATRIX = (
    "multiply parts of one axis, x[a:b] @ W; a matrix (m, k) per row by V (n, k) is "
    "(ops.reshape(x, (m, 1, k)) * V).sum(-1)"
)


def _matmul_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    x, w = types
    if w.domain != ONE or len(w.shape) != 2:
        cure = "of two rows write ops.dot(x, y), or with a tensor ops.bilinear(x, V, y)"
        if x.domain == ONE and len(x.shape) == 2:
            cure = "write x @ W: rows are the left operand"
        raise ValueError("the right side must be a parameter matrix", cure)
    if x.dtype != FLOAT or w.dtype != FLOAT:
        raise TypeError("both sides must be floats", TO_FLOATS)
    if len(x.shape) != 1:
        raise ValueError("the left side must have one axis per row", _MATRIX)
    if x.shape[0] != w.shape[0]:
        raise ValueError(f"inner sizes differ ({x.shape[0]} != {w.shape[0]})")
    return TensorType(FLOAT, (w.shape[1],), x.domain)


defop(
    "matmul",
    infer=_matmul_infer,
    vjp=lambda n, d: (
        apply("matmul", d, transpose(n.inputs[1])),
        apply("matmul_tn", n.inputs[0], d),
    ),
    evaluate=lambda n, x, w: x @ w,
    cost=100,
    symbol="@",
    takes_weights=True,
    linear_in=(0, 1),
    reads=Reads.PIECES,
)


def _matmul_tn_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    return placed_type((types[0].shape[0], types[1].shape[0]), attrs)


# The gradient of a parameter matrix: sum over all rows of the outer products.
defop(
    "matmul_tn",
    infer=_matmul_tn_infer,
    evaluate=lambda n, x, y: place(n, np.outer(x, y)),
    rule=BatchRule.REDUCE,
    cost=100,
    linear_in=(0, 1),
    windowed=True,
    reads=Reads.PIECES,
)


def _transpose_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    (w,) = types
    if w.domain != ONE or len(w.shape) != 2:
        raise ValueError(
            "only a parameter matrix can be transposed",
            "a matrix (m, k) per row times x is (A * x).sum(-1), its transpose times y "
            "(A * ops.reshape(y, (m, 1))).sum(-2)",
        )
    return TensorType(FLOAT, (w.shape[1], w.shape[0]), ONE)


defop(
    "transpose",
    infer=_transpose_infer,
    vjp=lambda n, d: (transpose(d),),
    evaluate=lambda n, w: w.T,
    cost=0,
    rearranges=True,
    linear_in=(0,),
)


def _rows_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    (w,) = types
    if w.domain != ONE or len(w.shape) != 2:
        raise ValueError("only a parameter matrix has rows to cut")
    if not 0 <= attrs["start"] < attrs["stop"] <= w.shape[0]:
        raise ValueError(f"rows {attrs['start']}:{attrs['stop']} of {w.shape[0]}")
    return TensorType(FLOAT, (attrs["stop"] - attrs["start"], w.shape[1]), ONE)


def _pad_rows_evaluate(node: Node, d: Any) -> Any:
    result = np.zeros(node.shape)
    result[node.attr("start") : node.attr("start") + len(d)] = d
    return result


# Rows of a parameter matrix, and the transpose: zeros above and below.
defop(
    "rows",
    infer=_rows_infer,
    vjp=lambda n, d: (apply("pad_rows", d, start=n.attr("start"), size=n.inputs[0].shape[0]),),
    evaluate=lambda n, w: w[n.attr("start") : n.attr("stop")],
    cost=0,
    linear_in=(0,),
)
defop(
    "pad_rows",
    infer=lambda types, attrs: TensorType(FLOAT, (attrs["size"], types[0].shape[1]), ONE),
    evaluate=_pad_rows_evaluate,
    cost=0,
    linear_in=(0,),
)


def transpose(w: Node) -> Node:
    """W^T of a parameter matrix or its gradient."""
    if w.op.name == "transpose":
        return w.inputs[0]
    if w.op.name == "matmul_tn":
        return apply("matmul_tn", w.inputs[1], w.inputs[0])
    return apply("transpose", w)


def matmul(x: Any, w: Any) -> Node:
    """x @ W: rows of shape (k,) times a parameter of shape (k, n)."""
    return apply("matmul", x, w)


def dot(x: Any, y: Any) -> Node:
    """Return the inner product of two rows (k,): one number per row.

    ShapeError for different widths.
    """
    a, b = as_node(x), as_node(y)
    if a.shape[-1:] != b.shape[-1:]:
        raise ShapeError(
            f"[dot] rows of one width are needed: {a.type}, {b.type}",
            where=user_line(),
            hint="multiply by one number per row with a * b",
        )
    return (a * b).sum(-1)


def bilinear(x: Any, v: Any, y: Any) -> Node:
    """Return the tensor product x^T V_k y for each k (Socher et al. 2013).

    x: rows (a,); V: parameter (a, c * b), V_k its columns [k * b, (k + 1) * b); y: rows (b,).
    Returns rows (c,).
    """
    right = as_node(y)
    t = matmul(as_node(x), v)
    if len(right.shape) != 1:
        raise ShapeError(
            f"[bilinear] y is a row with one axis, not {right.type}",
            where=user_line(),
            hint="for one number per row write (x @ V) * y",
        )
    b = right.shape[0]
    if t.type.width % b:
        raise ShapeError(
            f"[bilinear] {t.type.width} columns of V are no multiple of {b} elements of y",
            where=user_line(),
            hint=f"for c results V has c * {b} columns: cavs.Parameter(({t.inputs[0].type.width}, "
            f"c * {b}))",
        )
    return (apply("reshape", t, shape=(t.type.width // b, b)) * right).sum(-1)
