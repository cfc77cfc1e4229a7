"""Balance by LB-BSP while training: how many graphs each rank gets, whatever they look like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from cavs.cuda.device import Device
from cavs.distributed.balance.balancer import Balancer, Reports
from cavs.distributed.balance.lbbsp import PairRule, SpeedRule
from cavs.distributed.balance.narx import NARX
from cavs.distributed.balance.predictors import ARIMA, EMA, Memoryless, Predictor
from cavs.distributed.balance.shares import whole_shares
from cavs.distributed.balance.usage import Usage, host_usage, usage_on

PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "memoryless": Memoryless,
    "ema": EMA,
    "arima": ARIMA,
    "narx": NARX,
}


def _in_order(counts: Sequence[int]) -> list[range]:
    ends = list(accumulate(counts))
    return [range(end - count, end) for count, end in zip(counts, ends, strict=True)]


class SpeedBalancer(Balancer[list[float], list[int]]):
    """Algorithm 1 of LB-BSP, for CPUs: counts in proportion to the speeds predicted of the ranks.

    predictor: makes the `Predictor` of a rank; the paper's unless given, which is `EMA` for 500
    steps. usage: gives the shares of CPU and memory that are in use where this rank runs. The rest:
    see `Balancer`; the paper has no lag.

    Each rank predicts its own speed and reports it, since predictions may differ by processor;
    `update` without reports, or with two numbers each, predicts those of all ranks here.
    """

    reports = 3  # use of CPU and memory, and the speed predicted

    def __init__(
        self,
        ranks: int | None = None,
        predictor: Callable[[], Predictor] = NARX,
        lag: int = 3,
        *,
        usage: Usage = host_usage,
        timeout: float = 600.0,
    ) -> None:
        self.predictor, self.usage = predictor, usage
        self.speeds: list[float] = []  # predicted, in graphs a second; equal until one is known
        super().__init__(ranks, lag, timeout)

    def _begin(self, ranks: int) -> None:
        self._rule = SpeedRule([1] * ranks, self.predictor)
        self.speeds = [1.0] * ranks

    def _now(self) -> list[float]:
        return self.speeds

    def _deal(self, graphs: Sequence[Any], known: list[float]) -> tuple[list[range], list[int]]:
        counts = whole_shares(len(graphs), known)
        return _in_order(counts), counts

    def report(self, rank: int, seconds: float) -> tuple[float, ...]:
        """See `Balancer.report`: the shares of CPU and memory in use, and its next speed."""
        use, counts = self.usage(), self.dealt
        if counts is None:
            return (*use, 0.0)
        return (*use, self._rule.foresee(rank, counts[rank], seconds, *use))

    def _learn(self, dealt: list[int], seconds: Sequence[float], reports: Reports) -> None:
        if reports and len(reports[0]) == self.reports:
            self.speeds = [speed for *_, speed in reports]
            return
        cpu, memory = zip(*reports, strict=True) if reports else (None, None)
        self.speeds = self._rule.learn(dealt, seconds, cpu, memory)


class PairBalancer(Balancer[list[int], list[int]]):
    """Algorithm 2 of LB-BSP, for GPUs: the fastest rank takes graphs from the slowest.

    It supposes no more than that time grows with the count, so it learns from whole batches alone,
    and only from those dealt by its last counts: with a `lag` it moves as much more seldom. Where a
    rank has fewer than 30 graphs, the steps of the fast phase are a sixth of that, not 5. usage: as
    of `SpeedBalancer`; of memory, 95 % in use are too much to get more graphs. None: a training
    takes that of the device on which this rank computes (`usage_on`).
    """

    reports = 2  # use of CPU and memory

    def __init__(
        self,
        ranks: int | None = None,
        lag: int = 0,
        *,
        usage: Usage | None = None,
        timeout: float = 600.0,
    ) -> None:
        self.usage = self._given = usage
        self._device: Device | None = None
        self.rule: PairRule | None = None  # from the first times on
        self._first: list[int] = []
        super().__init__(ranks, lag, timeout)

    @property
    def warnings(self) -> list[str]:
        """Which ranks are too slow to be worth keeping."""
        return [] if self.rule is None else self.rule.warnings

    def reset(self) -> None:
        """See `Balancer.reset`; what comes now may be cut into batches of another size."""
        super().reset()
        self._resized = True

    def _begin(self, ranks: int) -> None:
        self._first, self.rule = [1] * ranks, None

    def _now(self) -> list[int]:
        return self._first if self.rule is None else list(self.rule.counts)

    def _deal(self, graphs: Sequence[Any], known: list[int]) -> tuple[list[range], list[int]]:
        counts = whole_shares(len(graphs), known)
        return _in_order(counts), counts

    def on(self, device: Device | None) -> None:
        if self._given is None and (self.usage is None or device is not self._device):
            self.usage, self._device = usage_on(device), device

    def report(self, rank: int, seconds: float) -> tuple[float, ...]:
        """See `Balancer.report`: the shares of CPU and memory in use."""
        return (self.usage or host_usage)()

    def _learn(self, dealt: list[int], seconds: Sequence[float], reports: Reports) -> None:
        size = 0 if self.rule is None else sum(self.rule.counts)
        if self.rule is None or sum(dealt) > size or (self._resized and sum(dealt) < size):
            # The first, or all before were the short ends of epochs, or of other loaders.
            self.rule = PairRule(dealt, step=max(1, min(5, min(dealt) // 6)))
        self._resized = False
        if dealt == self.rule.counts:
            self.rule.update(seconds, [memory for _, memory in reports] if reports else None)
