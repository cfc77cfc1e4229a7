"""Counter-based random numbers: the same on every device, thread count and schedule.

They are a function of seed and step, of the operator in the model, and of the number of the vertex,
edge or graph in its batch.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from cavs.errors import ConfigError, TraceError, user_line
from cavs.ir import FLOAT, Node, TensorType, apply, as_node, defop
from cavs.ir.trace import current_trace
from cavs.ops.elementwise import cos, log, maximum, sqrt, where

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
    return where(_drawn(x) >= rate, x * (1 / (1 - rate)), 0.0)


def _drawn(x: Node) -> Node:
    """Return uniform numbers in [0, 1), one for each element of ``x``."""
    stream = current_trace().next_stream()
    return apply("uniform", stream=stream, shape=x.shape, domain=x.type.domain)


def _like(name: str, operands: tuple[Any, ...], like: Any) -> Node:
    """Return a value of the type of what ``name`` draws: that of its operands, broadcast."""
    nodes = [as_node(x) for x in (*operands, *(() if like is None else (like,)))]
    if all(node.op.name == "constant" for node in nodes):
        raise TraceError(
            f"[{name}] of numbers alone does not say how many numbers to draw",
            where=user_line(),
            hint=f"ops.{name}(like=x) draws one for each element of x, in each of its rows",
        )
    found, *others = nodes
    for node in others:
        found = apply("add", found, node)
    return found


def uniform(low: Any = 0.0, high: Any = 1.0, *, like: Any = None) -> Node:
    """Random numbers, uniform from ``low`` to below ``high``, for each element of the operands.

    like: a value whose rows and elements they have, too. The gradient passes to ``low`` and
    ``high``. Unlike dropout, random numbers are drawn outside of training, too. TraceError for
    numbers alone.
    """
    u = _drawn(_like("uniform", (low, high), like))
    least = as_node(low)
    return least + (as_node(high) - least) * u


def normal(mean: Any = 0.0, std: Any = 1.0, *, like: Any = None) -> Node:
    """Normal random numbers with a mean and a standard deviation, as `uniform` draws them.

    The gradient passes to ``mean`` and ``std`` by reparameterisation: mean + std * z.
    """
    x = _like("normal", (mean, std), like)
    radius = sqrt(-2.0 * log(1.0 - _drawn(x)))  # Box and Muller 1958
    return as_node(mean) + as_node(std) * (radius * cos(2.0 * math.pi * _drawn(x)))


def gumbel(location: Any = 0.0, scale: Any = 1.0, *, like: Any = None) -> Node:
    """Random numbers of the Gumbel distribution, as `uniform` draws them.

    ``softmax((logits + gumbel(like=logits)) / temperature)`` is a relaxed sample of a category. The
    gradient passes to ``location`` and ``scale``.
    """
    exponential = -log(1.0 - _drawn(_like("gumbel", (location, scale), like)))
    # One of 2**24 numbers is 0; it stands for the interval to half of the next one.
    return as_node(location) - as_node(scale) * log(maximum(exponential, 2.0**-25))
