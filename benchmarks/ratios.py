"""Medians, spreads and ratios of interleaved measurements."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import TypedDict

import numpy as np


class Summary(TypedDict):
    """Quartiles, minimum and number of repetitions."""

    median: float
    q25: float
    q75: float
    least: float
    rounds: int


def summary(values: SequenceOf[float]) -> Summary:
    """Return the summary of some values; ValueError without values."""
    if not values:
        raise ValueError("no values to summarise")
    q25, median, q75 = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
    return Summary(median=median, q25=q25, q75=q75, least=float(min(values)), rounds=len(values))


def ratio(numerators: SequenceOf[float], denominators: SequenceOf[float]) -> Summary:
    """Return ratios of two runners' times, round by round: both ran at about the same time."""
    if len(numerators) != len(denominators):
        raise ValueError(f"{len(numerators)} and {len(denominators)} rounds cannot be paired")
    return summary([a / b for a, b in zip(numerators, denominators, strict=True)])
