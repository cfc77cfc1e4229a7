"""`Scale`: the values of an axis as fractions of its length, and its ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass

_LOGARITHMIC_FROM = 100.0  # ratio of the highest to the lowest value


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic scale from `low` to `high`, which differ."""

    low: float
    high: float
    logarithmic: bool = False

    def fraction(self, value: float) -> float:
        """Return 0 for `low`, 1 for `high`."""
        if self.logarithmic:
            lowest = math.log(self.low)
            return (math.log(value) - lowest) / (math.log(self.high) - lowest)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int = 6, *, whole: bool = False) -> list[float]:
        """Return at most about `most` round values on the scale, ascending.

        whole: Return whole numbers only.
        """
        if self.logarithmic:
            first, last = math.ceil(_log10(self.low)), math.floor(_log10(self.high))
            if last > first:
                every = -(-(last - first + 1) // most)
                return [10.0**power for power in range(first, last + 1, every)]
        span = self.high - self.low
        unit = 10.0 ** math.floor(math.log10(span / most))
        step = next(unit * m for m in (1, 2, 5, 10, 20) if span <= unit * m * most)
        step = max(step, 1.0) if whole else step
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [step * i for i in range(first, last + 1)]


def scale_of(low: float, high: float) -> Scale:
    """Return a scale with all values from `low` to `high`, logarithmic if they differ greatly."""
    if low > 0 and high / low >= _LOGARITHMIC_FROM:
        return Scale(low * 0.9, high * 1.1, logarithmic=True)
    margin = 0.05 * (high - low)
    if margin <= 1e-12 * max(abs(low), abs(high)):  # a constant
        margin = 0.1 * max(abs(low), 1e-12) if low else 1.0
    return Scale(0.0 if 0 <= low < margin else low - margin, high + margin)


def short(value: float) -> str:
    """Return a number in few characters: ``0.4321``, ``12345``, ``1.235e+09``."""
    if abs(value) < 1e9 and (value == int(value) or abs(value) >= 1e4):
        return f"{value + 0.0:.0f}"  # no -0
    return f"{value:.4g}"


def _log10(value: float) -> float:
    """Return the logarithm; that of a power of ten without rounding errors."""
    return round(math.log10(value), 9)
