"""A policy that lets learning rate and batch size follow the number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cavs.config import require_flag
from cavs.train.policy import Policy, TrainingRun


class LinearScaling(Policy):
    """Multiplies the learning rate, and the batch size, by the growth of the number of ranks.

    Each rank keeps its number of graphs of a batch, and a batch that is k times as large gets a
    rate that is k times as high (the linear scaling rule of Goyal et al., Accurate, Large Minibatch
    SGD, 2017, section 2.1; Mai et al., KungFu, OSDI 2020, section 2.4, demand that parameters which
    depend on the number of ranks follow it). A run that resumes with another number of ranks scales
    at its begin.

    batch: False to keep the size of global batches, and scale the rate alone.
    """

    def __init__(self, batch: bool = True) -> None:
        require_flag("batch", batch)
        self.batch = batch
        self._ranks: int | None = None  # the number of ranks that was scaled for last
        self._rate, self._size = _Proportion(), _Proportion()

    def before_train(self, run: TrainingRun) -> None:
        """Scale if the run had another number of ranks when it was saved."""
        before, self._ranks = self._ranks, run.size
        if before is not None and before != run.size:
            self.on_resize(run, before, run.size)

    def on_resize(self, run: TrainingRun, old: int, new: int) -> None:
        """Scale both by ``new / old``."""
        self._ranks = new
        run.set_lr_scale(self._rate.follow(run.lr_scale, old, new))
        if self.batch:
            size = max(round(self._size.follow(run.batch_size, old, new)), 1)
            self._size.last = size
            run.set_batch_size(size)

    def state_dict(self) -> dict[str, Any]:
        return {"ranks": self._ranks, "rate": vars(self._rate), "size": vars(self._size)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._ranks = state["ranks"]
        self._rate, self._size = _Proportion(**state["rate"]), _Proportion(**state["size"])


class _Proportion:
    """A number in proportion to the number of ranks: `value` for `ranks` of them.

    last: the number that was set last. It stays in proportion to a value that is not rounded, so
    that it is the same again when the ranks are, unless something else has changed it meanwhile.
    """

    def __init__(self, value: float = 0.0, ranks: int = 1, last: float | None = None) -> None:
        self.value, self.ranks, self.last = value, ranks, last

    def follow(self, now: float, old: int, new: int) -> float:
        """Return the number for `new` ranks; now: that of `old` ranks."""
        if now != self.last:
            self.value, self.ranks = now, old
        self.last = self.value * (new / self.ranks)  # the value itself where they are equal
        return self.last
