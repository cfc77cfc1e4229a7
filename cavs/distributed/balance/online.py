"""Balance by structure while training: splits batches ahead of the steps that it learns from."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.balance.model import CostModel
from cavs.distributed.balance.split import split_batch
from cavs.errors import ConfigError


class StructureBalancer:
    """Called with the graphs of a global batch, gives the positions of each rank's; learns times.

    Every rank has one, calls it for the same batches and tells it the same times, in the order of
    the batches. A loader splits batches before earlier steps have ended, on each rank at another
    moment; for all ranks to find the same split, that of batch n is made by what the model knew
    after step n - lag - 1, and waits for it where it must. A lag as long as the loader looks ahead
    never waits.

    ranks: that compute; as many as the first batch is split for unless given.
    """

    def __init__(
        self,
        ranks: int | None = None,
        lag: int = 3,
        model: CostModel | None = None,
        timeout: float = 600.0,
    ) -> None:
        if lag < 0:
            raise ConfigError(f"a balancer of lag {lag}", hint="give 0 or more steps")
        self.ranks = ranks if ranks is not None or model is None else len(model.slowness)
        self.model = model or CostModel(1 if ranks is None else ranks)
        self.lag, self.timeout = lag, timeout
        self._changed = threading.Condition()
        self.reset()

    def reset(self) -> None:
        """Forgets batches that were split and not run, as at the end of an epoch; not the times."""
        with self._changed:
            self._split, self._updated = 0, 0
            self._known = {0: copy.copy(self.model)}
            self._features: dict[int, NDArray[np.float64] | None] = {}

    def __call__(self, graphs: Sequence[Any], ranks: int) -> list[list[int]]:
        """The positions of each rank's graphs. With fewer graphs than ranks, the last get none."""
        if self.ranks is None:
            self.ranks, self.model = ranks, CostModel(ranks)
            self.reset()
        if ranks != self.ranks:
            raise ConfigError(
                f"a balancer of {self.ranks} ranks splits for {ranks}", hint="make one of its own"
            )
        with self._changed:
            number = self._split
            self._split += 1
            needed = max(number - self.lag, 0)
            if not self._changed.wait_for(lambda: self._updated >= needed, self.timeout):
                raise ConfigError(
                    f"batch {number} is split, but only {self._updated} steps reported their times",
                    hint="call update after every step, and reset when batches are left out",
                )
            model = self._known[needed]
            for old in [n for n in self._known if n < needed]:
                del self._known[old]
        if len(graphs) < ranks:
            parts, features = [[i] if i < len(graphs) else [] for i in range(ranks)], None
        else:
            split = split_batch(graphs, model)
            parts, features = split.parts, split.features
        with self._changed:
            self._features[number] = features
        return parts

    def update(self, seconds: Sequence[float] | None) -> None:
        """The next step has ended: seconds that each rank computed; None if they say nothing."""
        with self._changed:
            if self._updated not in self._features:
                raise ConfigError(
                    f"times of step {self._updated}, whose batch was not split here",
                    hint="call the balancer for every batch, and reset when batches are left out",
                )
            features = self._features.pop(self._updated)
            if features is not None and seconds is not None:
                self.model.update(features, seconds)
            self._updated += 1
            self._known[self._updated] = copy.copy(self.model)
            self._changed.notify_all()
