"""Losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cavs.config import require
from cavs.data.vertex_types import row_feature
from cavs.errors import ShapeError, TraceError, user_line
from cavs.ir import (
    FLOAT,
    INT,
    ONE,
    ONE_COLUMN,
    TO_FLOATS,
    TO_INTEGERS,
    BatchRule,
    Domain,
    Node,
    Reads,
    TensorType,
    apply,
    as_node,
    broadcast_shapes,
    defop,
    join_domains,
    toposort,
)
from cavs.ops.elementwise import softplus
from cavs.ops.leaves import feature


def _rows_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    logits, label = types
    if logits.dtype != FLOAT or label.dtype != INT:
        cure = TO_INTEGERS if logits.dtype == FLOAT else TO_FLOATS
        raise TypeError("logits must be floats, labels an integer feature", cure)
    if len(logits.shape) != 1:
        raise ValueError("logits must have one axis per row, the classes")
    if label.shape:
        raise ValueError("labels must be one integer per row", ONE_COLUMN)
    if label.domain.structure != logits.domain.structure:
        join_domains([logits.domain, label.domain])  # raises unless one has a row per graph
    if label.domain.base != logits.domain.base:
        cures = [
            "ops.sum_roots(h) or ops.mean_graph(h) before the output layer makes one row a graph"
        ] * (label.domain.base == "graph" and logits.domain.base == "vertex")
        raise ValueError(f"labels of every {label.domain}, logits of every {logits.domain}", *cures)
    return TensorType(FLOAT, (), join_domains([logits.domain, label.domain]))


def _grad_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    logits, label, slope = types
    if slope.dtype != FLOAT or slope.shape:
        raise ValueError(f"the slope of a loss is one float per row, not {slope}")
    domain = join_domains([logits.domain, label.domain, slope.domain])
    if domain.base != logits.domain.base:
        raise ValueError(f"slopes of every {slope.domain}, logits of every {logits.domain}")
    return TensorType(FLOAT, logits.shape, domain)


def _log_softmax(x: Any) -> Any:
    shifted = x - np.max(x)
    return shifted - np.log(np.sum(np.exp(shifted)))


def _grad_evaluate(node: Node, x: Any, label: Any, slope: Any) -> Any:
    """(softmax - onehot) * slope; without a label 0 * slope, which is NaN if the slope is NaN or
    infinite, as products are."""
    if label < 0:
        return np.zeros_like(x) * slope
    result = np.exp(_log_softmax(x))
    result[int(label)] -= 1
    return result * slope


# -log softmax(logits)[label] of each row; 0 where the label is absent (-1).
defop(
    "cross_entropy_rows",
    infer=_rows_infer,
    vjp=lambda n, d: (apply("cross_entropy_grad", *n.inputs, d), None),
    evaluate=lambda n, x, label: -_log_softmax(x)[int(label)] if label >= 0 else 0.0,
    cost=100,
    reads=Reads.ONE_ROW_EACH,
    instruction="cross_entropy",
)
# (softmax(logits) - onehot(label)) * slope: the gradient of a row, of which slope is the cotangent.
defop(
    "cross_entropy_grad",
    infer=_grad_infer,
    evaluate=_grad_evaluate,
    cost=100,
    linear_in=(2,),
    reads=Reads.ONE_ROW_EACH,
    instruction="cross_entropy_grad",
)
# The number of values of an integer feature that are present (>= 0).
defop(
    "count_present",
    infer=lambda types, attrs: TensorType(FLOAT, (), ONE),
    vjp=lambda n, d: (None,),
    evaluate=lambda n, index: float(index >= 0),
    rule=BatchRule.REDUCE,
    view=True,
    program_input=True,
)
# The number of rows of a domain; attrs: base, its name ("graph", "vertex", "edge"), and structure,
# if samples have several.
defop(
    "count_rows",
    infer=lambda types, attrs: TensorType(FLOAT, (), ONE),
    cost=0,
    view=True,
    program_input=True,
)
# The factor of sums over the rows of this replica; 1 on one process.
defop(
    "replica_scale",
    infer=lambda types, attrs: TensorType(FLOAT, (), ONE),
    cost=0,
    view=True,
    program_input=True,
)


def cross_entropy(logits: Any, label: Any, reduction: str = "mean") -> Node:
    """Cross entropy of rows of logits (classes,) against integer labels; -1 is no label.

    reduction: "mean" over the labelled rows, "sum" over them, or "none" (one number per row).
    ConfigError for another one.
    """
    require(reduction in _REDUCTIONS, "reduction", reduction, " or ".join(map(repr, _REDUCTIONS)))
    rows = apply("cross_entropy_rows", logits, label)
    if reduction == "none":
        return rows
    total = apply("sum_rows", rows)
    if reduction == "sum":
        return total
    return total / apply("maximum", apply("count_present", label), 1.0)


def sum_rows(value: Any) -> Node:
    """Return the sum over all rows of the batch; a custom loss ends in it.

    value: floats, one row per vertex, edge or graph; returns one row of the same shape. DTypeError
    for integers.
    """
    return apply("sum_rows", as_node(value))


def mean_rows(value: Any, weight: Any = None) -> Node:
    """Return the mean over all rows of the batch; 0 without any.

    value: floats, one row per vertex, edge or graph; returns one row of the same shape. weight: one
    number >= 0 per row; the mean is then sum(weight * value) / sum(weight), and 0 where all weights
    are 0. The weight of a graph applies to all its rows. Weights need one process: a replica knows
    only its own, and refuses them. DTypeError for integers, ShapeError for weights with axes.
    """
    x = as_node(value)
    if weight is None:
        domain = x.type.domain
        return x if domain == ONE else sum_rows(x) / apply("maximum", _count(domain), 1.0)
    w = as_node(weight)
    if w.shape:
        raise ShapeError(
            f"[mean_rows] weights are one number per row, not {w.type}",
            where=user_line(),
            hint="ops.reshape(weight, ()) makes a number of a row with one element",
        )
    scale = w
    for _ in x.shape:
        scale = apply("keep_axis", scale)
    weighed = x * scale
    if w.type.domain != weighed.type.domain:
        w = apply("broadcast", w, shape=(), domain=weighed.type.domain)
    return sum_rows(weighed) / apply("maximum", sum_rows(w), _TINY)


def _count(domain: Domain) -> Node:
    """Return the number of rows of a domain; TraceError for pairs, which replicas do not count."""
    if domain.base == "pair":
        raise TraceError(
            f"[mean_rows] the rows of {domain} are pairs of a link, over which there is no mean",
            where=user_line(),
            hint="fold the pairs of each vertex first, value.mean(), or take ops.sum_rows(value)",
        )
    if domain.vertex_type is not None:
        rows = row_feature(domain.vertex_type, domain.structure)
        return apply("count_present", feature(rows, domain, INT))
    named = {"structure": domain.structure} if domain.structure else {}
    return apply("count_rows", base=domain.base, **named)


def _mean(x: Node) -> Node:
    """Return the mean over all elements of all rows."""
    domain, width = x.type.domain, float(x.type.width)
    count = width if domain == ONE else _count(domain) * width
    total = apply("sum_rows", x)
    total = total.sum() if total.shape else total
    return total / apply("maximum", count, 1.0)


def _same_elements(x: Node, t: Node) -> bool:
    """True if neither operand broadcasts against the other."""
    try:
        together = math.prod(broadcast_shapes([x.shape, t.shape]))
    except ValueError:
        return False
    return x.type.width == t.type.width == together


def _pair(name: str, prediction: Any, target: Any) -> tuple[Node, Node]:
    """Return both as nodes; ShapeError if an element would be compared with another's target."""
    x, t = as_node(prediction), as_node(target)
    if ONE not in (x.type.domain, t.type.domain) and not _same_elements(x, t):
        raise ShapeError(
            f"[{name}] predictions of shape {list(x.shape)}, targets of shape {list(t.shape)}",
            where=user_line(),
            hint="a row of both has as many elements; one target for all is reduced first, such as "
            "by prediction.mean(-1)",
        )
    return x, t


def mean_squared_error(prediction: Any, target: Any) -> Node:
    """Sum over rows of the squared differences, divided by the number of elements.

    target: a number, a value of the batch, or rows as wide as the predictions'; else ShapeError.
    """
    x, t = _pair("mean_squared_error", prediction, target)
    difference = x - t
    return _mean(difference * difference)


def binary_cross_entropy(logits: Any, target: Any) -> Node:
    """Mean over all elements of -t log(p) - (1 - t) log(1 - p), where p = sigmoid(logit).

    target: floats from 0 to 1: a number, a value of the batch, or rows as wide as those of the
    logits; else ShapeError.
    """
    x, t = _pair("binary_cross_entropy", logits, target)
    return _mean(softplus(x) - x * t)


_TINY = 1e-30  # less than any sum of weights
_REDUCTIONS = ("mean", "sum", "none")
_COUNTING = frozenset(
    [
        "constant",
        "broadcast",
        "count_present",
        "count_rows",
        "mul",
        "sum_rows",
        "sum_axis",
        "reshape",
    ]
)


def mean_terms(loss: Node) -> Node | None:
    """Return the number of terms that ``loss`` is the mean of; None if it is no single mean.

    A mean is ``total / maximum(count, 1)``, as `cross_entropy` and `mean_squared_error` give it,
    or that of `mean_rows` with weights, whose sum is the count.
    Multiples of it, and sums of means over as many terms, are means too; so is a mean plus a
    function of parameters alone, such as a penalty.
    """
    counts: set[Node] = set()
    stack = [loss]
    while stack:
        x = stack.pop()
        count = _divisor(x)
        if count is not None:
            counts.add(count)
        elif x.op.name in ("add", "sub", "neg", "reshape"):
            stack += x.inputs
        elif x.op.name == "mul" and any(_same_in_every_batch(y) for y in x.inputs):
            stack += [y for y in x.inputs if not _same_in_every_batch(y)]
        elif x.op.name == "div" and _same_in_every_batch(x.inputs[1]):
            stack.append(x.inputs[0])
        elif not _same_in_every_batch(x):
            return None
    return counts.pop() if len(counts) == 1 else None


def _divisor(x: Node) -> Node | None:
    """Return ``count`` if ``x`` is ``total / maximum(count, 1)``."""
    if x.op.name != "div" or x.inputs[1].op.name != "maximum":
        return None
    count, least = x.inputs[1].inputs
    if least.op.name != "constant":
        return None
    if count.op.name == "sum_rows" and least.attr("value") == _TINY:
        return count
    if least.attr("value") != 1.0 or count.type.width != 1:
        return None
    stack = [count]
    while stack:
        node = stack.pop()
        if node.op.name not in _COUNTING:
            return None
        if node.op.name != "count_present":
            stack += node.inputs
    return count


def _same_in_every_batch(x: Node) -> bool:
    nodes = toposort([x])
    return all(
        n.op.rule is BatchRule.ROWWISE and (n.inputs or n.op.name in ("parameter", "constant"))
        for n in nodes
    )
