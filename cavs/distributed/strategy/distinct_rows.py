"""The number of rows that several replicas touch together, from those that one of them touches.

Words are neither equally frequent nor spread by a power law alone, so neither even draws (all rows
that replicas share are chance) nor Heaps' law (new ones never run out) holds for text and for
tables that are touched almost whole. Both are ends of one family: a row is drawn with a rate of its
own, and rates have a gamma distribution (Fisher 1943; shapes down to -1: Engen 1974). t samples
then show D(t) rows, with D'(t) = a (1 + c t)^-p, D(0) = 0. One sample tells all three numbers: the
rows in it, those in it once, D'(1), and twice, -D''(1) / 2 (Good and Toulmin 1956).
"""

from __future__ import annotations

import math

_EVEN, _POWER = 1e-6, 1e9  # c from even draws to a pure power law
_LARGEST = 700.0  # largest argument of exp


def _mean(rate: float, length: float) -> float:
    """Return the mean of exp(rate * x), x from 0 to `length`."""
    x = min(rate * length, _LARGEST)
    return math.expm1(x) / x if x else 1.0


def distinct(rows: float, once: float, twice: float, samples: float) -> float:
    """Return the number of different rows of `samples` samples, one or more, that are like one.

    rows: different ones in that one. once, twice: those of them that it has once, and twice.
    """
    if once <= 0 or samples <= 1:
        return rows
    slope = 2 * max(twice, 0.5) / once  # -D'' / D' at 1; of none at all half a row is expected

    def shown(c: float) -> float:
        """Return D(1) / D'(1), which grows with c."""
        span = math.log1p(c)
        return (1 + c) / c * span * _mean(slope * (1 + c) / c - 1, span)

    low, high = math.log(_EVEN), math.log(_POWER)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if shown(math.exp(middle)) * once < rows else (low, middle)
    c = math.exp(low)
    span = math.log1p(c * (samples - 1) / (1 + c))
    new = once * (1 + c) / c * span * _mean(1 - slope * (1 + c) / c, span)
    return min(rows + new, rows * samples)
