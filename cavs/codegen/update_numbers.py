"""Numbers of an update that a rule computes from rate, weight decay and step, on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cavs.ir import Node, toposort
from cavs.ops.primitives import NumpyExpression


class _Host(NumpyExpression):
    """The primitives on numbers.

    The functions are those of the C library, not of NumPy, whose vectorised ones round differently
    on other processors: all ranks of a training apply the same numbers.
    """

    def exp(self, x: Any) -> Any:
        try:
            return math.exp(x)
        except OverflowError:
            return math.inf

    def log(self, x: Any) -> Any:
        return math.log(x) if x > 0 else np.log(x)

    def tanh(self, x: Any) -> Any:
        return math.tanh(x)

    def sqrt(self, x: Any) -> Any:
        return math.sqrt(x) if x >= 0 else np.sqrt(x)


_HOST = _Host()


def _power(base: float, exponent: int) -> float:
    """Return a power by products alone, which all processors round alike."""
    result = 1.0
    while exponent:
        result = result * base if exponent & 1 else result
        base, exponent = base * base, exponent >> 1
    return result


class UpdateNumbers:
    """Evaluates traced numbers of an update, in float64.

    Those of features "rate", "decay", "step" and "BASE ** step" are given or computed here.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        order = toposort(nodes)
        at = {node: i for i, node in enumerate(order)}
        self._start: list[Any] = [0.0] * len(order)
        self._named: list[tuple[int, str]] = []
        self._powers: list[tuple[int, float]] = []
        self._calls: list[tuple[int, Any, list[int], dict[str, Any]]] = []
        self._wanted = [at[node] for node in nodes]
        for i, node in enumerate(order):
            if node.op.name == "constant":
                self._start[i] = node.attr("value")
            elif node.op.name != "feature":
                self._calls.append(
                    (i, node.op.expr, [at[x] for x in node.inputs], dict(node.attrs))
                )
            elif node.attr("name").endswith(" ** step"):
                self._powers.append((i, float(node.attr("name").removesuffix(" ** step"))))
            else:
                self._named.append((i, node.attr("name")))

    def evaluate(self, rate: float, decay: float, step: float) -> list[float]:
        """Return the numbers in the order of their nodes; infinity and NaN where they occur."""
        known = {"rate": float(rate), "decay": float(decay), "step": float(step)}
        try:
            return self._evaluate(self._start, known)
        except ZeroDivisionError:  # Python raises, where IEEE 754 has a result
            with np.errstate(all="ignore"):
                return self._evaluate(
                    [np.float64(x) for x in self._start],
                    {name: np.float64(x) for name, x in known.items()},
                )

    def _evaluate(self, start: Sequence[Any], known: dict[str, Any]) -> list[float]:
        values = list(start)
        for i, name in self._named:
            values[i] = known[name]
        for i, base in self._powers:
            values[i] = type(known["step"])(_power(base, int(known["step"])))
        for i, call, inputs, attrs in self._calls:
            values[i] = call(_HOST, *[values[x] for x in inputs], **attrs)
        return [float(values[i]) for i in self._wanted]
