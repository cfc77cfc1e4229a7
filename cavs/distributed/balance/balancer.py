"""Base class of balancers: batches are split ahead of the steps that a balancer learns from."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from cavs.config import require
from cavs.cuda.device import Device
from cavs.errors import ConfigError, ProcessLocal

Known = TypeVar("Known")  # state that determines a split
Dealt = TypeVar("Dealt")  # record of a split until its times are known
Reports = Sequence[tuple[float, ...]]
Floats = NDArray[np.float64]


class Balancer(ProcessLocal, ABC, Generic[Known, Dealt]):
    """Split global batches among the ranks, and learn from the times of their steps.

    Every rank has one, calls it for the same batches and tells it the same times, in their order. A
    loader splits batches before earlier steps have ended, on each rank at another moment; for all
    ranks to find the same split, batch n is split by the times up to step n - lag - 1, and waits
    for them. In `Trainer.fit` none waits: batches of a loader that looks further ahead than `lag`
    are split when their step begins.

    ranks: number that compute; by default that of the first split. timeout: seconds that a split
    waits for earlier steps.
    """

    _pickling_hint: ClassVar[str] = "make a balancer in each process, with the same options"
    needs_times = True  # without the times of all ranks it is of no use
    reports = 0  # numbers of a `report`

    def __init__(self, ranks: int | None, lag: int, timeout: float) -> None:
        require(lag >= 0, "lag", lag, "0 or more steps")
        require(ranks is None or ranks >= 1, "ranks", ranks, "at least 1")
        self.ranks, self.lag, self.timeout = ranks, lag, timeout
        self._changed = threading.Condition()
        if ranks is not None:
            self._begin(ranks)
        self.reset()

    def reset(self) -> None:
        """Forget batches that were split and not run, as when a step failed; the times are kept."""
        with self._changed:
            self._split, self._updated = 0, 0
            self._known = {0: self._now()}
            self._dealt: dict[int, Dealt | None] = {}

    def fresh(self) -> Self:
        """Return a balancer for other ranks without timing history."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), ranks=None, _changed=threading.Condition())
        other.reset()
        return other

    def __call__(self, graphs: Sequence[Any], ranks: int) -> Sequence[Sequence[int]]:
        """Return the positions of each rank's graphs; the last ranks get none of too few."""
        if self.ranks is None:
            self.ranks = ranks
            self._begin(ranks)
            self.reset()
        if ranks != self.ranks:
            what = f"a balancer of {self.ranks} ranks splits for {ranks}"
            raise ConfigError(what, hint="make one of its own")
        with self._changed:
            number = self._split
            self._split += 1
            needed = max(number - self.lag, 0)
            if not self._changed.wait_for(lambda: self._updated >= needed, self.timeout):
                raise ConfigError(
                    f"batch {number} is split, but only {self._updated} steps reported their times",
                    hint="call update after every step, and reset when batches are left out",
                )
            self._known = {n: state for n, state in self._known.items() if n >= needed}
            known = self._known[needed]
        parts: Sequence[Sequence[int]]
        if len(graphs) < ranks:
            parts, dealt = [[i] if i < len(graphs) else [] for i in range(ranks)], None
        else:
            parts, dealt = self._deal(graphs, known)
        with self._changed:
            self._dealt[number] = dealt
        return parts

    def on(self, device: Device | None) -> None:
        """Set the device of this rank, None for its host, before each `report`; may raise."""

    def report(self, rank: int, seconds: float) -> tuple[float, ...]:
        """Return the numbers that this `rank` shares with the others at the end of a step.

        seconds: of its computation. Results of anything but sums, products and comparisons must be
        computed by one rank and shared: their bits may differ by processor. Empty by default.
        """
        return ()

    @property
    def dealt(self) -> Dealt | None:
        """Record of the split of the current step; None if nothing can be learned from it."""
        with self._changed:
            return self._dealt.get(self._updated)

    def update(self, seconds: Sequence[float] | None, reports: Reports = ()) -> None:
        """Learn from the next step, which has ended.

        seconds: that each rank computed; None if they say nothing. reports: the `report` of each.
        """
        with self._changed:
            if self._updated not in self._dealt:
                raise ConfigError(
                    f"times of step {self._updated}, whose batch was not split here",
                    hint="call the balancer for every batch, and reset when batches are left out",
                )
            dealt = self._dealt.pop(self._updated)
            if dealt is not None and seconds is not None:
                self._learn(dealt, seconds, reports)
            self._updated += 1
            self._known[self._updated] = self._now()
            self._changed.notify_all()

    @abstractmethod
    def _begin(self, ranks: int) -> None:
        """Reset to `ranks` ranks without timing history."""

    @abstractmethod
    def _now(self) -> Known:
        """Return a copy of the present state, which later steps do not change."""

    @abstractmethod
    def _deal(self, graphs: Sequence[Any], known: Known) -> tuple[Sequence[Sequence[int]], Dealt]:
        """Return the positions of each rank's graphs, one at least, and the record of the split."""

    @abstractmethod
    def _learn(self, dealt: Dealt, seconds: Sequence[float], reports: Reports) -> None:
        """Learn the times of the step whose split was `dealt`."""


class CountBalancer(Balancer[Sequence[float], list[int]]):
    """A `Balancer` that deals a batch in order, counts in proportion to a weight of each rank."""

    def _deal(self, graphs: Sequence[Any], known: Sequence[float]) -> tuple[list[range], list[int]]:
        counts = whole_shares(len(graphs), known)
        ends = accumulate(counts)
        return [range(end - n, end) for n, end in zip(counts, ends, strict=True)], counts


def whole_shares(
    total: int, weights: Sequence[float], most: Sequence[int] | None = None
) -> list[int]:
    """Return `total` samples cut in proportion to `weights`, in whole numbers that add up to it.

    Every share is at least 1, and at most `most`. Rounding is by largest remainder, equal ones from
    the first on. Raises `ConfigError` if there are no such shares.
    """
    wanted = np.asarray(weights, np.float64)
    limits = np.full(len(wanted), total) if most is None else np.asarray(most)
    if not len(wanted) or not (np.isfinite(wanted).all() and (wanted > 0).all()):
        raise ConfigError(f"shares by weights {list(weights)}", hint="give positive numbers")
    if total < len(wanted) or limits.min() < 1 or limits.sum() < total:
        raise ConfigError(
            f"{total} samples for {len(wanted)} ranks that take 1 to {limits.tolist()}",
            hint="every rank needs one: use a larger batch or fewer ranks, or raise the limits",
        )
    exact = _within(total, wanted, limits.astype(np.float64))
    shares = np.floor(exact + 1e-9)
    order = np.argsort(-(exact - shares), kind="stable")
    growing = [i for i in order if shares[i] < limits[i]]
    shares[growing[: round(total - shares.sum())]] += 1
    return [int(share) for share in shares]


def _within(total: int, weights: Floats, limits: Floats) -> Floats:
    """Return shares in proportion, except that those outside of [1, limit] are set to its ends."""
    fixed = np.full(len(weights), np.nan)
    while (free := np.isnan(fixed)).any():
        rest = total - fixed[~free].sum()
        shares = rest * weights / weights[free].sum()
        low, high = free & (shares < 1), free & (shares > limits)
        if not low.any() and not high.any():
            return np.where(free, shares, fixed)
        # Those on the heavier side are fixed first: fixing them can bring the others back.
        if (shares - limits)[high].sum() >= (1 - shares)[low].sum():
            fixed[high] = limits[high]
        else:
            fixed[low] = 1.0
    return fixed


def check_seconds(seconds: Sequence[float], workers: int) -> None:
    """Raise `ConfigError` unless these are positive seconds of so many workers."""
    if len(seconds) != workers or not all(0 < value < float("inf") for value in seconds):
        raise ConfigError(
            f"seconds of {workers} workers: {list(seconds)}", hint="give a positive number for each"
        )
