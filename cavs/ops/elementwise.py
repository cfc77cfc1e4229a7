"""Elementwise operators.

The ``expr`` of an operator gives the NumPy reference, the CPU kernel and the CUDA text: it is
called with ``e`` (see cavs.ops.primitives) and symbolic or NumPy operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from cavs.ir import (
    FLOAT,
    Domain,
    Node,
    Reads,
    TensorType,
    apply,
    as_node,
    broadcast_shapes,
    defop,
    join_domains,
    need_floats,
)
from cavs.ops.primitives import NUMPY

CHEAP, COSTLY = 1, 10


def broadcast_type(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    """Return the type of float operands that are broadcast over rows and inside them."""
    return _broadcast(tuple(types))


@lru_cache(maxsize=4096)  # few types recur
def _broadcast(types: tuple[TensorType, ...]) -> TensorType:
    need_floats(types)
    shape = broadcast_shapes([t.shape for t in types])
    return TensorType(FLOAT, shape, join_domains([t.domain for t in types]))


def elementwise(
    name: str,
    expr: Callable[..., Any],
    vjp: Callable[[Node, Node], Sequence[Node | None]] | None,
    cost: int = CHEAP,
    **traits: Any,
) -> None:
    """Define an elementwise operator ``name``; see `cavs.ir.Op` for its ``traits``."""

    def evaluate(node: Node, *rows: Any) -> Any:
        return expr(NUMPY, *rows, **dict(node.attrs)) if node.attrs else expr(NUMPY, *rows)

    defop(name, infer=broadcast_type, vjp=vjp, evaluate=evaluate, expr=expr, cost=cost, **traits)


_CHOICE: dict[str, Any] = {"total": True, "exact": True}
_COMPARISON: dict[str, Any] = {"total": True, "exact": True, "comparison": True}

elementwise(
    "add", lambda e, a, b: a + b, lambda n, d: (d, d), symbol="+", jointly_linear=True, total=True
)
elementwise(
    "sub", lambda e, a, b: a - b, lambda n, d: (d, -d), symbol="-", jointly_linear=True, total=True
)
elementwise(
    "mul",
    lambda e, a, b: a * b,
    lambda n, d: (d * n.inputs[1], d * n.inputs[0]),
    symbol="*",
    linear_in=(0, 1),
    total=True,
)
elementwise(
    "div",
    lambda e, a, b: a / b,
    lambda n, d: (d / n.inputs[1], -(d * n / n.inputs[1])),
    cost=3,
    symbol="/",
    linear_in=(0,),
)
elementwise("neg", lambda e, a: -a, lambda n, d: (-d,), linear_in=(0,), **_CHOICE)
elementwise(
    "maximum",
    lambda e, a, b: e.maximum(a, b),
    lambda n, d: (d * (n.inputs[0] >= n.inputs[1]), d * (n.inputs[1] > n.inputs[0])),
    **_CHOICE,
)
elementwise(
    "minimum",
    lambda e, a, b: e.minimum(a, b),
    lambda n, d: (d * (n.inputs[1] >= n.inputs[0]), d * (n.inputs[0] > n.inputs[1])),
    **_CHOICE,
)
elementwise(
    "greater", lambda e, a, b: e.greater(a, b), lambda n, d: (None, None), symbol=">", **_COMPARISON
)
elementwise(
    "greater_equal",
    lambda e, a, b: e.greater_equal(a, b),
    lambda n, d: (None, None),
    symbol=">=",
    **_COMPARISON,
)
elementwise(
    "equal", lambda e, a, b: e.equal(a, b), lambda n, d: (None, None), symbol="==", **_COMPARISON
)
elementwise(
    "where",
    lambda e, c, a, b: e.select(c, a, b),
    lambda n, d: (None, where(n.inputs[0], d, 0.0), where(n.inputs[0], 0.0, d)),
    **_CHOICE,
)


def _log1p(e: Any, a: Any) -> Any:
    """Return log(1 + a) for 0 <= a <= 1, corrected for the rounding of 1 + a (Kahan)."""
    one = e.constant(1.0)
    whole = one + a
    return e.log(whole) + (a - (whole - one)) / whole


elementwise("exp", lambda e, a: e.exp(a), lambda n, d: (d * n,), COSTLY)
elementwise("log", lambda e, a: e.log(a), lambda n, d: (d / n.inputs[0],), COSTLY)
elementwise("tanh", lambda e, a: e.tanh(a), lambda n, d: (d * (1.0 - n * n),), COSTLY, total=True)
elementwise(
    "sigmoid",
    lambda e, a: e.sigmoid(a),
    lambda n, d: (d * (n * (1.0 - n)),),
    COSTLY,
    total=True,
)
elementwise("sin", lambda e, a: e.sin(a), lambda n, d: (d * cos(n.inputs[0]),), COSTLY, total=True)
elementwise(
    "cos", lambda e, a: e.cos(a), lambda n, d: (-(d * sin(n.inputs[0])),), COSTLY, total=True
)
elementwise("sqrt", lambda e, a: e.sqrt(a), lambda n, d: (d * (0.5 / n),), 5)
elementwise(
    "abs",
    lambda e, a: e.absolute(a),
    lambda n, d: (d * ((n.inputs[0] > 0.0) - (n.inputs[0] < 0.0)),),
    **_CHOICE,
)
elementwise(
    "softplus",
    lambda e, a: e.maximum(a, e.constant(0.0)) + _log1p(e, e.exp(-e.absolute(a))),
    lambda n, d: (d * sigmoid(n.inputs[0]),),
    2 * COSTLY,
    total=True,
)
# The power by a number that is not whole; 0 at 0. attrs: exponent > 0.
defop(
    "power",
    infer=broadcast_type,
    vjp=lambda n, d: (d * (n.attr("exponent") * n.inputs[0] ** (n.attr("exponent") - 1.0)),),
    evaluate=lambda n, a: np.power(a, n.attr("exponent")),
    expr=lambda e, a, *, exponent: e.exp(e.constant(exponent) * e.log(a)),
    cost=2 * COSTLY,
)
elementwise(
    "relu",
    lambda e, a: e.maximum(a, e.constant(0.0)),
    lambda n, d: (where(n > 0.0, d, 0.0),),
    **_CHOICE,
)


# The same value, with a gradient of zero.
elementwise(
    "stop_gradient",
    lambda e, a: a,
    lambda n, d: (None,),
    cost=0,
    linear_in=(0,),
    **_CHOICE,
)


# Repeat rows or elements to fill a given type.
def _broadcast_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    return _filled(types[0].domain, attrs["domain"], types[0].shape, attrs["shape"])


@lru_cache(maxsize=4096)
def _filled(
    domain: Domain, to_domain: Domain, shape: tuple[int, ...], to_shape: tuple[int, ...]
) -> TensorType:
    joined = join_domains([domain, to_domain])
    if joined.rank != to_domain.rank:
        raise ValueError(f"{domain} does not broadcast to {to_domain}")
    return TensorType(FLOAT, broadcast_shapes([shape, to_shape]), joined)


def _broadcast_evaluate(node: Node, a: Any) -> Any:
    return a + 0.0 * NUMPY.zeros(node.shape)


defop(
    "broadcast",
    infer=_broadcast_infer,
    vjp=lambda n, d: (d,),
    evaluate=_broadcast_evaluate,
    expr=lambda e, a, **attrs: a,
    cost=0,
    linear_in=(0,),
    reads=Reads.PIECES,
    **_CHOICE,
)


def exp(x: Any) -> Node:
    """e to the power of each element."""
    return apply("exp", x)


def log(x: Any) -> Node:
    """Natural logarithm of each element."""
    return apply("log", x)


def tanh(x: Any) -> Node:
    """Hyperbolic tangent of each element."""
    return apply("tanh", x)


def sigmoid(x: Any) -> Node:
    """1 / (1 + exp(-x)) of each element."""
    return apply("sigmoid", x)


def relu(x: Any) -> Node:
    """max(x, 0) of each element; its derivative at 0 is 0."""
    return apply("relu", x)


def sin(x: Any) -> Node:
    """Sine of each element, in radians."""
    return apply("sin", x)


def cos(x: Any) -> Node:
    """Cosine of each element, in radians."""
    return apply("cos", x)


def sqrt(x: Any) -> Node:
    """Square root of each element."""
    return apply("sqrt", x)


def square(x: Any) -> Node:
    """x * x of each element."""
    return apply("mul", x, x)


def absolute(x: Any) -> Node:
    """Magnitude of each element; its derivative at 0 is 0."""
    return apply("abs", x)


def maximum(a: Any, b: Any) -> Node:
    """Return the larger of two elements; ties give the gradient to the first."""
    return apply("maximum", a, b)


def minimum(a: Any, b: Any) -> Node:
    """Return the smaller of two elements; ties give the gradient to the first."""
    return apply("minimum", a, b)


def where(condition: Any, a: Any, b: Any) -> Node:
    """``a`` where the condition is not 0, else ``b``.

    The gradient is that of the branch taken, also where the other one is infinite or NaN.
    """
    return apply("where", condition, a, b)


def equal(a: Any, b: Any) -> Node:
    """1 where two elements are equal, else 0; Python's ``==`` compares the objects."""
    return apply("equal", a, b)


def clip(x: Any, low: Any, high: Any) -> Node:
    """Each element, but at least ``low`` and at most ``high``."""
    return minimum(maximum(x, low), high)


def leaky_relu(x: Any, slope: float = 0.01) -> Node:
    """x where x > 0, else slope * x."""
    node = as_node(x)
    return where(node > 0.0, node, slope * node)


def elu(x: Any, alpha: float = 1.0) -> Node:
    """x where x > 0, else alpha * (exp(x) - 1) (Clevert et al. 2016)."""
    node = as_node(x)
    return where(node > 0.0, node, alpha * (exp(minimum(node, 0.0)) - 1.0))


def softplus(x: Any) -> Node:
    """log(1 + exp(x)) without overflow."""
    return apply("softplus", x)


def silu(x: Any) -> Node:
    """x * sigmoid(x) (Swish)."""
    return apply("mul", x, sigmoid(x))


def gelu(x: Any) -> Node:
    """Return the tanh form of GELU (Hendrycks and Gimpel 2016)."""
    node = as_node(x)
    inner = 0.7978845608028654 * (node + 0.044715 * node * node * node)
    return 0.5 * node * (1.0 + tanh(inner))


def stop_gradient(x: Any) -> Node:
    """Return the same value, as a constant for training: no gradient passes through it."""
    return apply("stop_gradient", x)
