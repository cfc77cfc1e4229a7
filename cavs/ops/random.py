"""Counter-based random numbers: the same on every device, thread count and schedule."""

from __future__ import annotations

from numbers import Real
from typing import Any

from cavs.errors import ConfigError, user_line
from cavs.ir import FLOAT, Node, TensorType, apply, as_node, defop
from cavs.ir.trace import current_trace
from cavs.ops.elementwise import where

# Uniform numbers in [0, 1): a function of (seed, step, stream, vertex or edge, column).
defop(
    "uniform",
    infer=lambda types, attrs: TensorType(FLOAT, attrs["shape"], attrs["domain"]),
    expr=lambda e, *, stream, shape, domain: e.uniform(stream),
    cost=2,
    total=True,
)


def check_rate(rate: object) -> None:
    """Raise ConfigError for an invalid rate of dropout."""
    if not isinstance(rate, Real) or not 0 <= float(rate) < 1:
        raise ConfigError(f"dropout rate {rate!r}", where=user_line(), hint="choose 0 <= rate < 1")


def dropout(value: Any, rate: float) -> Node:
    """Zeroes elements with probability ``rate`` and scales the rest by 1 / (1 - rate).

    The identity outside training.
    """
    x = as_node(value)
    check_rate(rate)
    trace = current_trace()
    if rate == 0 or not trace.training:
        return x
    u = apply("uniform", stream=trace.next_stream(), shape=x.shape, domain=x.type.domain)
    return where(u >= rate, x * (1 / (1 - rate)), 0.0)
