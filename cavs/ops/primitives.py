"""Primitives of fused elementwise kernels, one entry each.

An entry says what a primitive of ``csrc/kernels/map_operations.h`` means in NumPy, in CUDA C and in
the text of programs. The ``expr`` of an operator calls primitives as methods of its ``e``; Python's
``+ - * /`` and negation are primitives too. docs/operators.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Primitive:
    """Meaning of a primitive.

    operands: number of registers that it reads. cuda: a C expression of {0}, {1}, {2}; {f} is the
    suffix of the C functions of the type, f for float. numpy: the function that ``e`` has under
    the name ``method``, by default the primitive's own. text: how programs print it, if not as a
    function.
    """

    operands: int
    cuda: str
    numpy: Callable[..., Any] | None = None
    method: str = ""
    text: str = ""


def _sigmoid(x: Any) -> Any:
    return 0.5 * np.tanh(0.5 * x) + 0.5  # does not overflow, unlike 1 / (1 + exp(-x))


PRIMITIVES = {
    "copy": Primitive(1, "{0}", text="{0}"),
    "add": Primitive(2, "{0} + {1}", text="({0} + {1})"),
    "sub": Primitive(2, "{0} - {1}", text="({0} - {1})"),
    "mul": Primitive(2, "{0} * {1}", text="({0} * {1})"),
    "div": Primitive(2, "{0} / {1}", text="({0} / {1})"),
    # NaN goes through, unlike in fmaxf.
    "max": Primitive(2, "{0} > {1} || {0} != {0} ? {0} : {1}", np.maximum, "maximum"),
    "min": Primitive(2, "{0} < {1} || {0} != {0} ? {0} : {1}", np.minimum, "minimum"),
    "neg": Primitive(1, "-{0}", text="-{0}"),
    "abs": Primitive(1, "fabs{f}({0})", np.abs, "absolute"),
    "exp": Primitive(1, "exp{f}({0})", np.exp),
    "log": Primitive(1, "log{f}({0})", np.log),
    "tanh": Primitive(1, "hyperbolic_tangent({0})", np.tanh),
    "sigmoid": Primitive(1, "reciprocal(1 + exp{f}(-{0}))", _sigmoid),
    "sin": Primitive(1, "sine({0})", np.sin),
    "cos": Primitive(1, "cosine({0})", np.cos),
    "sqrt": Primitive(1, "sqrt{f}({0})", np.sqrt),
    "greater": Primitive(
        2, "{0} > {1} ? 1 : 0", lambda a, b: np.where(a > b, 1.0, 0.0), text="({0} > {1})"
    ),
    "greater_equal": Primitive(
        2, "{0} >= {1} ? 1 : 0", lambda a, b: np.where(a >= b, 1.0, 0.0), text="({0} >= {1})"
    ),
    "equal": Primitive(
        2, "{0} == {1} ? 1 : 0", lambda a, b: np.where(a == b, 1.0, 0.0), text="({0} == {1})"
    ),
    "select": Primitive(3, "{0} != 0 ? {1} : {2}", lambda c, a, b: np.where(c != 0, a, b)),
    "fma": Primitive(3, "fma{f}({0}, {1}, {2})", text="({0} * {1} + {2})"),
}

_METHODS = {p.method or code: code for code, p in PRIMITIVES.items() if p.numpy is not None}


def operands_of(code: str) -> int:
    """Number of registers that an operation reads; "constant", "column", "uniform" read none."""
    return PRIMITIVES[code].operands if code in PRIMITIVES else 0


def primitive_of(method: str) -> str:
    """Return the primitive that an ``expr`` calls by the name ``method``."""
    if method not in _METHODS:
        raise AttributeError(f"no primitive {method!r}: there are {', '.join(_METHODS)}")
    return _METHODS[method]


class NumpyExpression:
    """The ``e`` of an ``expr`` that computes on NumPy arrays of any shape."""

    def __getattr__(self, method: str) -> Any:
        found = self.__dict__[method] = PRIMITIVES[primitive_of(method)].numpy
        return found

    def constant(self, value: float) -> Any:
        """Return the number itself."""
        return value

    def zeros(self, shape: tuple[int, ...]) -> Any:
        """Zeros of float64."""
        return np.zeros(shape)


NUMPY = NumpyExpression()
