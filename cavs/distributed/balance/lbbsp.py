"""The two rules of LB-BSP for how many samples each worker gets (Chen et al. 2020).

Both keep the global batch constant, change counts only between iterations, and must be run with the
same input on all ranks, or on one that tells the others: predictions may come out in other bits on
another processor, what follows from them does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cavs.distributed.balance.predictors import EMA, Predictor
from cavs.distributed.balance.shares import whole_shares
from cavs.errors import ConfigError

FULL_MEMORY = 0.95


def _check(name: str, values: Sequence[float], workers: int) -> None:
    if len(values) != workers or not all(0 < value < float("inf") for value in values):
        raise ConfigError(
            f"{name} of {workers} workers: {list(values)}", hint="give a positive number for each"
        )


class SpeedRule:
    """Algorithm 1, for CPUs: counts in proportion to the predicted speeds."""

    def __init__(self, counts: Sequence[int], predictor: Callable[[], Predictor] = EMA) -> None:
        if not counts or min(counts) < 1:
            raise ConfigError(f"first counts {list(counts)}", hint="every worker needs a sample")
        self.counts = list(counts)
        self.predictors = [predictor() for _ in counts]
        self._use: list[tuple[float, float]] = [(0.0, 0.0)] * len(counts)

    def update(
        self,
        seconds: Sequence[float],
        cpu: Sequence[float] | None = None,
        memory: Sequence[float] | None = None,
    ) -> list[int]:
        """The counts of the next iteration, after one of `counts`; see `learn`."""
        self.counts = whole_shares(sum(self.counts), self.learn(self.counts, seconds, cpu, memory))
        return list(self.counts)

    def learn(
        self,
        counts: Sequence[int],
        seconds: Sequence[float],
        cpu: Sequence[float] | None = None,
        memory: Sequence[float] | None = None,
    ) -> list[float]:
        """The speeds predicted for the next iteration, in samples a second.

        counts: of the last one. seconds: of compute in it, without waiting, by worker. cpu, memory:
        use now.
        """
        workers = len(self.counts)
        _check("seconds", seconds, workers)
        zeros = [0.0] * workers
        each = zip(counts, seconds, cpu or zeros, memory or zeros, strict=True)
        return [self.foresee(i, *told) for i, told in enumerate(each)]

    def foresee(
        self, worker: int, count: int, seconds: float, cpu: float = 0.0, memory: float = 0.0
    ) -> float:
        """As `learn`, of one worker alone; others may ask it, where processors differ."""
        _check("seconds", [seconds], 1)
        predictor = self.predictors[worker]
        predictor.update(count / seconds, *self._use[worker])
        self._use[worker] = cpu, memory
        return predictor.predict(cpu, memory)


@dataclass
class PairRule:
    """Algorithm 2, for GPUs: the fastest worker takes samples from the slowest.

    It needs no more than that time grows with the count. In the fast phase 5 samples move once the
    pair has kept its order for 5 iterations; when a pair is found that was once the other way
    round, the fine phase begins for good: 1 sample, 20 iterations. A worker whose memory is 95 %
    full gets no more. `warnings` says which workers are too slow to be worth keeping, once each.
    """

    counts: list[int]
    step: int = 5
    window: int = 5
    iteration: int = 0
    warnings: list[str] = field(default_factory=list)
    _named: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        if not self.counts or min(self.counts) < 1:
            raise ConfigError(f"first counts {self.counts}", hint="every worker needs a sample")
        self.counts = list(self.counts)
        workers = len(self.counts)
        # For how many iterations i has been faster than j without a break, and whether it ever was.
        self._streak = np.zeros((workers, workers), np.int64)
        self._ever = np.zeros((workers, workers), bool)

    @property
    def is_fine(self) -> bool:
        """True once the fine phase has begun."""
        return self.step == 1

    def update(self, seconds: Sequence[float], memory: Sequence[float] | None = None) -> list[int]:
        """The counts of the next iteration.

        seconds: of the last one, without waiting, by worker. memory: the share in use now.
        """
        workers = len(self.counts)
        _check("seconds", seconds, workers)
        times = np.asarray(seconds, np.float64)
        ahead = times[:, None] < times[None, :]
        self.iteration += 1
        self._streak = np.where(ahead, self._streak + 1, 0)
        self._ever |= ahead
        fits = [i for i in range(workers) if memory is None or memory[i] <= FULL_MEMORY]
        straggler = max(range(workers), key=lambda i: seconds[i])
        leader = min(fits, key=lambda i: seconds[i], default=straggler)
        if leader == straggler:
            return list(self.counts)
        if self.counts[straggler] <= self.step:
            if straggler not in self._named:
                self._named.add(straggler)
                self.warnings.append(
                    f"iteration {self.iteration}: worker {straggler} is slowest with "
                    f"{self.counts[straggler]} samples; training without it would be faster"
                )
            return list(self.counts)
        if self._streak[leader, straggler] >= self.window:
            self.counts[leader] += self.step
            self.counts[straggler] -= self.step
        elif self._ever[straggler, leader]:
            self.step, self.window = 1, 20
        return list(self.counts)
