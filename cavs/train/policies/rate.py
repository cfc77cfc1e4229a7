"""Policies that let the learning rate follow the noise of the gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cavs.config import require_count, require_number
from cavs.train.monitors import GradientVariance, NoiseScale
from cavs.train.policy import Policy, TrainingRun


class NoiseLR(Policy):
    """Scales the rate by 1 / (1 + noise scale / batch size) of its largest value.

    That is the rate at which a step of SGD decreases the loss most, relative to one without noise
    (McCandlish et al., An Empirical Model of Large-Batch Training, 2018, equation 2.6). It changes
    every `every` steps, and is relative to the rate of the schedule at the first noise scale.
    """

    def __init__(self, every: int = 10, alpha: float = 0.1) -> None:
        require_count("every", every)
        self.every, self.monitors = every, (NoiseScale(alpha=alpha),)
        self._first = math.nan

    def after_step(self, run: TrainingRun) -> None:
        """Set the scale of the rate."""
        if run.step % self.every != 0 or not 0 <= run.noise_scale < math.inf:
            return
        share = 1 / (1 + run.noise_scale / run.batch_size)
        if math.isnan(self._first):
            self._first = share
        run.set_lr_scale(share / self._first)

    def state_dict(self) -> dict[str, Any]:
        return {"first": None if math.isnan(self._first) else self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first = math.nan if state["first"] is None else float(state["first"])


class VarianceLR(Policy):
    """Scales the rate by the gain of averaging over ranks, which their variance tells.

    The gain of K ranks is (V + G) / (V / K + G), with the variance V of the gradient of a rank
    and the squared norm G of the true gradient: between 1, where ranks agree, and K (Johnson et
    al., AdaScale SGD, ICML 2020, equation 4). It multiplies a rate that suits one rank's batch, and
    is smoothed with weight `alpha`. Another number of ranks begins with a new average; the scale of
    one rank is 1.
    """

    def __init__(self, every: int = 1, alpha: float = 0.1) -> None:
        require_count("every", every)
        require_number("alpha", alpha, "a number in (0, 1]", lambda x: 0 < x <= 1)
        self.every, self.alpha = every, alpha
        self.monitors = (GradientVariance(),)
        self._variance = self._square = math.nan
        self._ranks = 1  # number of ranks of the averages

    def after_step(self, run: TrainingRun) -> None:
        """Smooth both and set the scale of the rate."""
        found, ranks = run.gradient_variance, run.size
        if ranks != self._ranks:
            self._variance = self._square = math.nan
            self._ranks = ranks
            if ranks == 1:
                run.set_lr_scale(1.0)
        if math.isnan(found) or ranks < 2:
            return
        variance = found * ranks / (ranks - 1)  # unbiased, of one rank's gradient
        square = run.grad_norm**2 - variance / ranks
        self._variance = self._smooth(self._variance, variance)
        self._square = self._smooth(self._square, square)
        if run.step % self.every == 0 and self._variance >= 0:
            true = max(self._square, 0.0)
            below = self._variance / ranks + true
            run.set_lr_scale((self._variance + true) / below if below > 0 else 1.0)

    def _smooth(self, old: float, new: float) -> float:
        return new if math.isnan(old) else self.alpha * new + (1 - self.alpha) * old

    def state_dict(self) -> dict[str, Any]:
        known = not math.isnan(self._variance)
        averages = [self._variance, self._square] if known else None
        return {"averages": averages, "ranks": self._ranks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        averages = state["averages"]
        self._variance, self._square = averages or (math.nan, math.nan)
        self._ranks = int(state["ranks"])
