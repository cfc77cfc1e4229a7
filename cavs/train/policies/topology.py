"""A policy that changes the tree of all-reduces when the network slows down."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cavs.config import require, require_count, require_number
from cavs.train.monitors import Throughput
from cavs.train.policy import Policy, TrainingRun


class AdaptiveTopology(Policy):
    """Sets another tree once the throughput has fallen below `share` of what it was.

    Each rank compares the throughput of the last `window` steps with that of the first `window`;
    if more than half of the ranks see less than `share` of it, the tree becomes the minimum
    spanning tree of the latencies measured then (``tree="latency"``), or a star around rank 1
    (``tree="star"``), once (Mai et al., KungFu, OSDI 2020, section 6.2; 0.8 and the star are those
    of its program). Another number of ranks, which has no tree yet, begins with a new reference.
    """

    def __init__(
        self, share: float = 0.8, window: int = 10, tree: str = "latency", probe: int = 1 << 18
    ) -> None:
        require_number("share", share, "a number in (0, 1)", lambda x: 0 < x < 1)
        require_count("window", window)
        require(tree in ("latency", "star"), "tree", tree, "'latency' or 'star'")
        require(type(probe) is int and probe >= 0, "probe", probe, "a number of bytes, or 0")
        self.share, self.window, self.tree, self.probe = share, window, tree, probe
        self.monitors = (Throughput(window=window),)
        self._reference = math.nan
        self._begun = -1  # step before the first window
        self._size = 0  # number of ranks since then
        self._done = False

    def before_train(self, run: TrainingRun) -> None:
        """Begin with a new reference: a resumed run has no tree, and maybe another network."""
        self._size = 0

    def after_step(self, run: TrainingRun) -> None:
        """Compare the throughput and vote."""
        if run.size != self._size:
            self._size, self._begun = run.size, run.step
            self._reference, self._done = math.nan, False
        if self._done or run.size < 2 or (run.step - self._begun) % self.window != 0:
            return
        if math.isnan(self._reference):
            if run.step > self._begun:
                self._reference = run.throughput
            return
        slow = run.throughput < self.share * self._reference
        if 2 * run.all_reduce(float(slow), "sum") > run.size:
            star = [1] * run.size
            self._done = run.set_tree(star if self.tree == "star" else run.latency_tree(self.probe))

    def state_dict(self) -> dict[str, Any]:
        reference = None if math.isnan(self._reference) else self._reference
        return {
            "reference": reference,
            "begun": self._begun,
            "size": self._size,
            "done": self._done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._reference = math.nan if state["reference"] is None else float(state["reference"])
        self._begun, self._size = int(state["begun"]), int(state["size"])
        self._done = bool(state["done"])
