"""Policies that change the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cavs.config import require_count, require_number
from cavs.train.monitors import NoiseScale, Throughput
from cavs.train.policy import Policy, TrainingRun


class ElasticGNS(Policy):
    """Multiplies the number of ranks by the growth of the noise scale.

    After every epoch, if the noise scale is larger than at the last change, the number of ranks is
    multiplied by their ratio, up to `most` (Mai et al., KungFu, OSDI 2020, listing 1).
    """

    def __init__(self, most: int | None = None, alpha: float = 0.1) -> None:
        if most is not None:
            require_count("most", most)
        self.most, self.monitors = most, (NoiseScale(alpha=alpha),)
        self._last = math.nan

    def after_epoch(self, run: TrainingRun) -> None:
        """Compare the noise scale with that of the last change."""
        noise = run.noise_scale
        if not noise > 0:  # an estimate may be below 0
            return
        if math.isnan(self._last):
            self._last = noise
        elif noise > self._last:
            most = min(run.max_size, self.most or run.max_size)
            size = int(min(run.size * noise / self._last, most))
            self._last = noise
            if size > run.size:
                run.resize(size)

    def state_dict(self) -> dict[str, Any]:
        return {"last": None if math.isnan(self._last) else self._last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._last = math.nan if state["last"] is None else float(state["last"])


class KeepSize(Policy):
    """Replaces ranks that have died by waiting processes, in an elastic training.

    size: number of ranks to keep; by default those that begin.
    """

    def __init__(self, size: int | None = None) -> None:
        if size is not None:
            require_count("size", size)
        self.size = size

    def before_train(self, run: TrainingRun) -> None:
        """Note the number of ranks."""
        self.size = self.size or run.size

    def after_step(self, run: TrainingRun) -> None:
        """Ask for as many ranks as there were, as far as processes wait."""
        wanted = min(self.size or 1, run.max_size)
        if run.size < wanted:
            run.resize(wanted)

    def state_dict(self) -> dict[str, Any]:
        return {"size": self.size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.size = state["size"]


class CostEffectiveSize(Policy):
    """Adds ranks one by one as long as each is worth its cost.

    Every `every` steps there is one more rank, up to `most`. If the throughput of all is then less
    than ``1 + alpha / size`` times as high, with the size before, the last one is removed and the
    size stays (Mai et al., KungFu, OSDI 2020, section 6.2: 400 steps, 0.33). A size that changes
    otherwise, such as by the death of a rank, begins the comparison again.
    """

    def __init__(self, every: int = 400, alpha: float = 0.33, most: int | None = None) -> None:
        require_count("every", every)
        require_number("alpha", alpha, "a number of at least 0", lambda x: x >= 0)
        if most is not None:
            require_count("most", most)
        self.every, self.alpha, self.most = every, alpha, most
        self.monitors = (Throughput(window=max(every // 2, 1)),)
        self._before = math.nan  # throughput at `_size`
        self._size = 0  # number of ranks before the last one came
        self._begun = -1  # step of the last change
        self._settled = False

    def after_step(self, run: TrainingRun) -> None:
        """Compare the throughput with that before the last rank came."""
        if self._begun < 0:
            self._begun = run.step - 1
        if self._settled or run.step - self._begun < self.every:
            return
        now = run.all_reduce(run.throughput, "mean")
        if math.isnan(now):
            return
        if 0 < self._size == run.size - 1 and now < self._before * (1 + self.alpha / self._size):
            self._settled = run.resize(self._size)
            return
        self._before, self._size, self._begun = now, run.size, run.step
        most = min(run.max_size, self.most or run.max_size)
        self._settled = run.size + 1 > most or not run.resize(run.size + 1)

    def state_dict(self) -> dict[str, Any]:
        before = None if math.isnan(self._before) else self._before
        return {
            "before": before,
            "size": self._size,
            "begun": self._begun,
            "settled": self._settled,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._before = math.nan if state["before"] is None else float(state["before"])
        self._size, self._begun = int(state["size"]), int(state["begun"])
        self._settled = bool(state["settled"])
