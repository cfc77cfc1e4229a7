"""Reductions inside a row and over rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cavs.errors import ShapeError, user_line
from cavs.ir import (
    FLOAT,
    ONE,
    BatchRule,
    Node,
    Reads,
    TensorType,
    apply,
    as_node,
    defop,
    need_floats,
)

_NUMBER = (
    "one number per row is used as it is; over the children fold without an axis: x.sum(), "
    "x.softmax()"
)


def _last_axis(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    (t,) = types
    need_floats(types)
    if not t.shape:
        raise ValueError("needs at least one axis", _NUMBER)
    return TensorType(FLOAT, t.shape[:-1], t.domain)


defop(
    "sum_axis",
    infer=_last_axis,
    vjp=lambda n, d: (apply("keep_axis", d),),
    evaluate=lambda n, x: np.sum(x, -1),
    cost=2,
    reduction="sum",
    linear_in=(0,),
)


def _max_vjp(n: Node, d: Node) -> list[Node]:
    hit = apply("equal", n.inputs[0], apply("keep_axis", n))
    return [hit * apply("keep_axis", d / hit.sum(-1))]


defop(
    "max_axis",
    infer=_last_axis,
    vjp=_max_vjp,
    evaluate=lambda n, x: np.max(x, -1),
    cost=2,
    reduction="max",
)


# The numbers of the elements of a row, from 0.
defop(
    "column_number",
    infer=lambda types, attrs: TensorType(FLOAT, (attrs["size"],), ONE),
    evaluate=lambda n: np.arange(n.attr("size"), dtype=np.float64),
    expr=lambda e, *, size: e.column(),
    total=True,
)


def placed_type(shape: tuple[int, ...], attrs: dict[str, Any]) -> TensorType:
    """Return the type of a sum over rows; with ``at`` and ``shape``, a window of a larger sum."""
    at, whole = attrs.get("at", (0,) * len(shape)), attrs.get("shape", shape)
    if len(at) != len(whole) or any(
        not 0 <= a <= w - s for a, s, w in zip(at, shape, whole, strict=True)
    ):
        raise ValueError(f"{list(shape)} at {list(at)} leaves {list(whole)}")
    return TensorType(FLOAT, whole, ONE)


def place(node: Node, value: Any) -> Any:
    """Return ``value`` at the window of ``node``, see ``placed_type``."""
    at = dict(node.attrs).get("at")
    if at is None:
        return value
    result = np.zeros(node.shape)
    result[tuple(slice(a, a + s) for a, s in zip(at, value.shape, strict=True))] = value
    return result


def _sum_rows_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    need_floats(types)
    return placed_type(types[0].shape, attrs)


# The sum over all rows of a domain: losses, and gradients of values that are broadcast.
defop(
    "sum_rows",
    infer=_sum_rows_infer,
    vjp=lambda n, d: (d,),
    evaluate=place,
    rule=BatchRule.REDUCE,
    linear_in=(0,),
    windowed=True,
    reads=Reads.PIECES,
)


def _greatest(x: Node) -> Node:
    """Return the maximum over the last axis, which shifts a softmax, without a gradient."""
    return apply("stop_gradient", apply("keep_axis", x.max(-1)))


def argmax(x: Any) -> Node:
    """Return the number of the greatest element of the last axis, as a float; the first of ties.

    A NaN counts as the greatest, as in NumPy. No gradient passes through it.
    """
    node = apply("stop_gradient", x)
    greatest = node.max(-1, keepdims=True)
    found = apply("maximum", apply("equal", node, greatest), 1.0 - apply("equal", node, node))
    number = apply("column_number", size=node.shape[-1])
    return apply("where", found, number, math.inf).min(-1)


def softmax(x: Any) -> Node:
    """exp(x) normalised over the last axis."""
    x = as_node(x)
    if not x.shape:
        raise ShapeError(
            f"[softmax] a row of one number has no axis: {x.type}",
            where=user_line(),
            hint="value.softmax() normalises edge values over the children of each vertex",
        )
    weight = apply("exp", x - _greatest(x))
    return weight / apply("keep_axis", weight.sum(-1))


def log_softmax(x: Any) -> Node:
    """log(softmax(x)) over the last axis, without overflow."""
    node = as_node(x)
    shifted = node - _greatest(node)
    return shifted - apply("keep_axis", apply("log", apply("exp", shifted).sum(-1)))


def logsumexp(x: Any) -> Node:
    """log(sum(exp(x))) over the last axis, without overflow."""
    node = as_node(x)
    greatest = apply("stop_gradient", node.max(-1))
    return apply("log", apply("exp", node - apply("keep_axis", greatest)).sum(-1)) + greatest
