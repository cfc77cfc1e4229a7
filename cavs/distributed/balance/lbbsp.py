"""LB-BSP: how many graphs each rank gets, whatever they look like (Chen et al. 2020).

Its two rules keep the global batch constant and change counts only between iterations. All ranks
run them with the same input, or one does and tells the others: predictions may have other bits on
another processor, what follows from them does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cavs.cuda.device import Device
from cavs.cuda.memory import CupyMemory
from cavs.distributed.balance.balancer import CountBalancer, Reports, check_seconds, whole_shares
from cavs.distributed.balance.predictors import ARIMA, EMA, NARX, Memoryless, Predictor
from cavs.errors import ConfigError

Use = Sequence[float] | None  # share in use now, by worker
Usage = Callable[[], tuple[float, float]]  # returns shares of CPU and memory in use
FULL_MEMORY = 0.95
_PREDICTORS: tuple[type[Predictor], ...] = (Memoryless, EMA, ARIMA, NARX)
PREDICTORS: dict[str, Callable[[], Predictor]] = {p.__name__.lower(): p for p in _PREDICTORS}


def _check_counts(counts: Sequence[int]) -> None:
    if not counts or min(counts) < 1:
        raise ConfigError(f"first counts {list(counts)}", hint="every worker needs a sample")


class SpeedRule:
    """Algorithm 1, for CPUs: counts in proportion to the predicted speeds."""

    def __init__(self, counts: Sequence[int], predictor: Callable[[], Predictor] = EMA) -> None:
        _check_counts(counts)
        self.counts = list(counts)
        self.predictors = [predictor() for _ in counts]
        self._use: list[tuple[float, float]] = [(0.0, 0.0)] * len(counts)

    def update(self, seconds: Sequence[float], cpu: Use = None, memory: Use = None) -> list[int]:
        """Return the counts of the next iteration, after one of `counts`; see `learn`."""
        self.counts = whole_shares(sum(self.counts), self.learn(self.counts, seconds, cpu, memory))
        return list(self.counts)

    def learn(
        self, counts: Sequence[int], seconds: Sequence[float], cpu: Use = None, memory: Use = None
    ) -> list[float]:
        """Return the speeds predicted for the next iteration, in samples a second, after one of
        `counts` that took so many seconds of compute, without waiting, by worker.
        """
        check_seconds(seconds, len(self.counts))
        zeros = [0.0] * len(seconds)
        each = zip(counts, seconds, cpu or zeros, memory or zeros, strict=True)
        return [self.foresee(i, *known) for i, known in enumerate(each)]

    def foresee(
        self, worker: int, count: int, seconds: float, cpu: float = 0.0, memory: float = 0.0
    ) -> float:
        """Return the speed predicted for one worker, as `learn` does for all of them."""
        check_seconds([seconds], 1)
        predictor = self.predictors[worker]
        predictor.update(count / seconds, *self._use[worker])
        self._use[worker] = cpu, memory
        return predictor.predict(cpu, memory)


@dataclass
class PairRule:
    """Algorithm 2, for GPUs: the fastest worker takes samples from the slowest.

    Time need only grow with the count. In the fast phase 5 samples move once the pair has kept its
    order for 5 iterations; when a pair is found that was once the other way round, the fine phase
    begins for good: 1 sample, 20 iterations. A worker whose memory is 95 % full gets no more.
    `warnings` says which workers are too slow to be worth keeping, once each.
    """

    counts: list[int]
    step: int = 5
    window: int = 5
    iteration: int = 0
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        _check_counts(self.counts)
        self.counts = list(self.counts)
        self._named, workers = set[int](), len(self.counts)
        # For how many iterations i has been faster than j without a break, and whether it ever was.
        self._streak = np.zeros((workers, workers), np.int64)
        self._ever = np.zeros((workers, workers), bool)

    @property
    def is_fine(self) -> bool:
        """True once the fine phase has begun."""
        return self.step == 1

    def update(self, seconds: Sequence[float], memory: Use = None) -> list[int]:
        """Return the counts of the next iteration; seconds: of the last one, without waiting."""
        workers = len(self.counts)
        check_seconds(seconds, workers)
        times = np.asarray(seconds, np.float64)
        ahead = times[:, None] < times[None, :]
        self.iteration += 1
        self._streak = np.where(ahead, self._streak + 1, 0)
        self._ever |= ahead
        fits = [i for i in range(workers) if memory is None or memory[i] <= FULL_MEMORY]
        straggler = max(range(workers), key=lambda i: seconds[i])
        leader = min(fits, key=lambda i: seconds[i], default=straggler)
        if leader != straggler:
            self._move(leader, straggler)
        return list(self.counts)

    def _move(self, leader: int, straggler: int) -> None:
        if self.counts[straggler] <= self.step:
            if straggler not in self._named:
                self._named.add(straggler)
                self.warnings.append(
                    f"iteration {self.iteration}: worker {straggler} is slowest with "
                    f"{self.counts[straggler]} samples; training without it would be faster"
                )
        elif self._streak[leader, straggler] >= self.window:
            self.counts[leader] += self.step
            self.counts[straggler] -= self.step
        elif self._ever[straggler, leader]:
            self.step, self.window = 1, 20


class HostUsage:
    """Usage of a Linux host by all its programs; zeros on other systems.

    CPU: the share of the time of all cores since this thread's last call that was not idle.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.proc = proc
        self._last = _Last()

    def __call__(self) -> tuple[float, float]:
        """Return the shares in use now."""
        try:
            stat, memory = ((self.proc / name).read_text() for name in ("stat", "meminfo"))
        except OSError:
            return 0.0, 0.0
        return self._cpu(stat.splitlines()[0]), _memory(memory)

    def _cpu(self, line: str) -> float:
        # user nice system idle iowait irq softirq steal; guests are counted in user.
        ticks = [int(word) for word in line.split()[1:9]]
        total, idle, last = sum(ticks), sum(ticks[3:5]), self._last
        if total > last.total:  # else two calls within a tick
            last.share = min(max(1 - (idle - last.idle) / (total - last.total), 0.0), 1.0)
        last.total, last.idle = total, idle
        return last.share


class _Last(threading.local):
    """Ticks and result of the last call of a thread: ranks may be threads."""

    total = idle = 0
    share = 0.0


def _memory(text: str) -> float:
    rows = (line.partition(":") for line in text.splitlines())
    sizes = {name: int(rest.split()[0]) for name, _, rest in rows}
    total = sizes.get("MemTotal", 0)
    available = sizes.get("MemAvailable", total)  # kernels before 3.14 do not say
    return min(max(1 - available / total, 0.0), 1.0) if total else 0.0


host_usage = HostUsage()


def gpu_usage(memory: CupyMemory) -> Usage:
    """Return the usage of the host's CPU and of a GPU's memory, without spare memory of a pool."""

    def usage() -> tuple[float, float]:
        free, total = memory.free_and_total()
        return host_usage()[0], 1 - min(free + memory.kept(), total) / total

    return usage


def usage_on(device: Device | None) -> Usage:
    """Return the usage of the memory of `device`, or of its host; DeviceError if unknown."""
    if device is None:
        return host_usage
    own = device.memory
    return gpu_usage(own if isinstance(own, CupyMemory) else CupyMemory(device.ordinal))


class SpeedBalancer(CountBalancer):
    """Algorithm 1 of LB-BSP, for CPUs: counts in proportion to the speeds predicted of the ranks.

    predictor: makes the `Predictor` of a rank, by default the paper's. usage: gives the shares of
    CPU and memory that are in use where this rank runs. The paper has no lag. Each rank predicts
    its own speed and reports it, since predictions may differ by processor; `update` without
    reports, or with two numbers each, predicts those of all ranks here.
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

    def _now(self) -> Sequence[float]:
        return self.speeds

    def report(self, rank: int, seconds: float) -> tuple[float, ...]:
        use, counts = self.usage(), self.dealt
        speed = 0.0 if counts is None else self._rule.foresee(rank, counts[rank], seconds, *use)
        return (*use, speed)

    def _learn(self, dealt: list[int], seconds: Sequence[float], reports: Reports) -> None:
        if reports and len(reports[0]) == self.reports:
            self.speeds = [speed for *_, speed in reports]
            return
        cpu, memory = zip(*reports, strict=True) if reports else (None, None)
        self.speeds = self._rule.learn(dealt, seconds, cpu, memory)


class PairBalancer(CountBalancer):
    """Algorithm 2 of LB-BSP, for GPUs: the fastest rank takes graphs from the slowest.

    It follows `PairRule`, so it learns from whole batches alone, and only from those dealt by its
    last counts: with a `lag` it moves as much more seldom. Where a rank has fewer than 30 graphs,
    the steps of the fast phase are a sixth of that, not 5. usage: as of `SpeedBalancer`; None: a
    training takes that of the device on which this rank computes (`usage_on`).
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
        super().__init__(ranks, lag, timeout)

    @property
    def warnings(self) -> list[str]:
        """Messages that name ranks too slow to be worth keeping."""
        return [] if self.rule is None else self.rule.warnings

    def reset(self) -> None:
        super().reset()
        self._resized = True  # later batches may have another size

    def _begin(self, ranks: int) -> None:
        self.rule = None

    def _now(self) -> Sequence[float]:
        return [1] * (self.ranks or 0) if self.rule is None else list(self.rule.counts)

    def on(self, device: Device | None) -> None:
        if self._given is None and (self.usage is None or device is not self._device):
            self.usage, self._device = usage_on(device), device

    def report(self, rank: int, seconds: float) -> tuple[float, ...]:
        return (self.usage or host_usage)()

    def _learn(self, dealt: list[int], seconds: Sequence[float], reports: Reports) -> None:
        size = 0 if self.rule is None else sum(self.rule.counts)
        if self.rule is None or sum(dealt) > size or (self._resized and sum(dealt) < size):
            # The first, or all before were the short ends of epochs, or of other loaders.
            self.rule = PairRule(dealt, step=max(1, min(5, min(dealt) // 6)))
        self._resized = False
        if dealt == self.rule.counts:
            self.rule.update(seconds, [memory for _, memory in reports] if reports else None)
