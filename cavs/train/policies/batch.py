"""Policies that let the batch size follow the gradient noise scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cavs.config import require_count, require_number
from cavs.train.monitors import NoiseScale
from cavs.train.policy import Policy, TrainingRun


class GNSBatch(Policy):
    """Grows the batch with the noise scale, at a constant rate.

    Every `every` epochs, the batch size is multiplied by the ratio of the noise scale to that of
    the time before, if it is above 1, up to `most` graphs (Mai et al., KungFu, OSDI 2020, section
    6.2: 10 epochs, 4096, smoothing 0.1).
    """

    def __init__(self, every: int = 10, most: int = 4096, alpha: float = 0.1) -> None:
        require_count("every", every)
        require_count("most", most)
        self.every, self.most = every, most
        self.monitors = (NoiseScale(alpha=alpha),)
        self._last = math.nan

    def after_epoch(self, run: TrainingRun) -> None:
        """Compare the noise scale with that of `every` epochs ago."""
        noise = run.noise_scale
        if run.epoch % self.every != 0 or not noise > 0:  # an estimate may be below 0
            return
        if noise > self._last and run.batch_size < self.most:  # False at the first time
            run.set_batch_size(int(min(run.batch_size * noise / self._last, self.most)))
        self._last = noise

    def state_dict(self) -> dict[str, Any]:
        return {"last": None if math.isnan(self._last) else self._last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._last = math.nan if state["last"] is None else float(state["last"])


class AdaptiveBatch(Policy):
    """Sets the batch to the smoothed noise scale after every epoch, never to a smaller one.

    The batch size is the critical batch, clamped to [`least`, `most`]. `smoothing` is the weight of
    the noise scale of a step in it, and the first `warm_up` steps are discarded (the thesis before
    KungFu, section 4.7: 256, 4096, 0.2 over a noise scale with weight 0.8).
    """

    def __init__(
        self,
        least: int = 256,
        most: int = 4096,
        alpha: float = 0.8,
        smoothing: float = 0.2,
        warm_up: int = 20,
    ) -> None:
        require_count("least", least)
        require_count("most", most, least)
        require_count("warm_up", warm_up, 0)
        require_number("smoothing", smoothing, "a number in (0, 1]", lambda x: 0 < x <= 1)
        self.least, self.most, self.smoothing, self.warm_up = least, most, smoothing, warm_up
        self.monitors = (NoiseScale(alpha=alpha),)
        self._critical = math.nan

    def after_step(self, run: TrainingRun) -> None:
        """Smooth the noise scale."""
        noise = run.noise_scale
        if run.step <= self.warm_up or math.isnan(noise):
            return
        old = noise if math.isnan(self._critical) else self._critical
        self._critical = self.smoothing * noise + (1 - self.smoothing) * old

    def after_epoch(self, run: TrainingRun) -> None:
        """Set the batch size of the next epoch."""
        if not math.isnan(self._critical):
            size = round(min(max(self._critical, self.least), self.most))
            run.set_batch_size(max(size, run.batch_size))

    def state_dict(self) -> dict[str, Any]:
        return {"critical": None if math.isnan(self._critical) else self._critical}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._critical = math.nan if state["critical"] is None else float(state["critical"])
