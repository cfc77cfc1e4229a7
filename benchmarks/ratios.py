"""Medians, spreads and ratios of interleaved measurements."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
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


class Turns(TypedDict):
    """Times of runners in turns. loss: of the first. ratios: of times, to those of the first."""

    loss: float
    seconds: dict[str, Summary]
    ratios: dict[str, Summary]


Pass = Callable[[], tuple[float, float]]  # returns its seconds and the last loss


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


def quartiles(found: Summary, show: str, convert: Callable[[float], float] = float) -> str:
    """Return the median and the quartiles as text, each converted, the smaller quartile first."""
    low, high = sorted((convert(found["q25"]), convert(found["q75"])))
    return f"{show.format(convert(found['median']))} ({show.format(low)}-{show.format(high)})"


def timed(train: Callable[[], float]) -> Pass:
    """Return a function that also returns the seconds that ``train`` takes."""

    def run() -> tuple[float, float]:
        begin = time.perf_counter()
        loss = train()
        return time.perf_counter() - begin, loss

    return run


def take_turns(
    runners: Mapping[str, Pass], rounds: int, tolerance: float | None, seconds: float = 0.0
) -> Turns:
    """Measure rounds of one pass of every runner, in an order that is reversed after each round.

    The pass before them is not measured. SystemExit if its losses differ from that of the first
    runner by more than ``tolerance`` of themselves; None: losses are not compared.

    seconds: least time of a round for the first runner; where a pass is shorter, all runners have
    as many passes more, and one before them, which fills the caches, is not measured.
    """
    losses = {name: run()[1] for name, run in runners.items()}
    passes = 1
    if seconds:
        passes = max(1, math.ceil(seconds / next(iter(runners.values()))()[0]))
    first, *_ = runners
    for loss in losses.values() if tolerance is not None else ():
        if not abs(loss - losses[first]) <= tolerance * abs(loss):
            raise SystemExit(f"losses after the first pass differ: {losses}")
    times: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(rounds):
        for name in list(runners)[:: 1 if turn % 2 else -1]:
            run = runners[name]
            if passes > 1:
                run()
            times[name].append(sum(run()[0] for _ in range(passes)) / passes)
    return Turns(
        loss=losses[first],
        seconds={name: summary(t) for name, t in times.items()},
        ratios={name: ratio(t, times[first]) for name, t in times.items()},
    )
