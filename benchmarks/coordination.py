"""Workers that straggle, and how they are coordinated, simulated: the clusters of LB-BSP.

The schemes are those that Chen et al. (SoCC 2020) compare: BSP, ASP, SSP, redundant execution (here
backup workers), FlexRR and LB-BSP, with the rules of `cavs.distributed.balance`. A worker takes
``fixed + each * samples`` seconds, times what other tasks on its host leave it, times noise, and
then ``push`` seconds until its gradient is there. Updates are real: they train a small network on
drawn data, so that stale gradients cost what they cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.balance import PairRule, SpeedRule

Floats = NDArray[np.float64]
CHECKS = 100  # comparisons of progress in an iteration of FlexRR
BEHIND, MOVED = 0.2, 0.025  # progress that asks for help; part of a batch that moves at once
MESSAGE = 0.002  # part of an iteration that a move costs both workers
STALENESS = 5  # iterations of SSP
MOMENTUM = 0.9
SCALES = np.logspace(0.7, -0.5, 24)  # sizes of inputs: some directions of the loss are much steeper


@dataclass(frozen=True)
class Worker:
    """fixed, each, push: see the module."""

    fixed: float
    each: float
    push: float = 0.0


@dataclass
class Cluster:
    """Workers and what disturbs them.

    samples: of each worker in a step of BSP. noise: relative standard deviation of a time. hold:
    mean seconds for which other tasks use a share of a host; 0 if there are none. spares: workers
    that redundant execution adds.
    """

    name: str
    workers: tuple[Worker, ...]
    samples: int
    noise: float = 0.05
    hold: float = 0.0
    spares: tuple[Worker, ...] = ()
    seed: int = 0
    _use: list[tuple[Floats, Floats]] = field(default_factory=list)
    _rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        rng = np.random.default_rng(self.seed + 1)
        for _ in (*self.workers, *self.spares):
            ends = np.cumsum(rng.exponential(self.hold or 1.0, 20_000))
            use = rng.beta(0.8, 1.6, len(ends)) * 0.85 if self.hold else np.zeros(len(ends))
            self._use.append((ends, use))

    def fresh(self) -> Cluster:
        """Return the same cluster from its beginning."""
        return replace(self, _use=[])

    def use(self, worker: int, now: float) -> float:
        """Return the share of a worker's host that other tasks use."""
        ends, use = self._use[worker]
        return float(use[np.searchsorted(ends, now) % len(use)])

    def rate(self, worker: int, now: float) -> float:
        """Return the part of its speed that a worker has in an iteration that begins now."""
        noise = max(self._rng.normal(1, self.noise), 0.2)
        return (1 - self.use(worker, now)) / noise

    def seconds(self, worker: int, samples: int, now: float) -> float:
        """Return the seconds in which a worker computes."""
        w = (*self.workers, *self.spares)[worker]
        return (w.fixed + w.each * samples) / self.rate(worker, now)


class Learner:
    """A network with one hidden layer on drawn classes, which is trained by given batches."""

    def __init__(self, rate: float, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.rng, self.rate = np.random.default_rng(seed + 1), rate
        self.teacher = rng.normal(size=(24, 40)), rng.normal(size=(40, 10))
        self.weights = [rng.normal(0, 0.2, (24, 48)), rng.normal(0, 0.14, (48, 10))]
        self.speed = [np.zeros_like(w) for w in self.weights]
        self.held = self.draw(2000)

    def draw(self, count: int) -> tuple[Floats, NDArray[np.int64]]:
        """Return samples and their classes."""
        x = self.rng.normal(size=(count, 24))
        return x * SCALES, np.argmax(np.tanh(x @ self.teacher[0]) @ self.teacher[1], axis=1)

    def gradient(self, weights: Sequence[Floats], count: int) -> list[Floats]:
        """Return the mean gradient over `count` new samples."""
        x, y = self.draw(count)
        h = np.tanh(x @ weights[0])
        p = _softmax(h @ weights[1])
        p[np.arange(count), y] -= 1
        back = (p @ weights[1].T) * (1 - h * h)
        return [x.T @ back / count, h.T @ p / count]

    def apply(self, gradient: Sequence[Floats], scale: float = 1.0) -> None:
        """Update the weights, by a new array each."""
        self.speed = [MOMENTUM * v + scale * g for v, g in zip(self.speed, gradient, strict=True)]
        self.weights = [w - self.rate * v for w, v in zip(self.weights, self.speed, strict=True)]

    def loss(self) -> float:
        """Return the loss on samples that are not trained on."""
        x, y = self.held
        p = _softmax(np.tanh(x @ self.weights[0]) @ self.weights[1])
        return float(-np.log(np.maximum(p[np.arange(len(y)), y], 1e-12)).mean())


def _softmax(x: Floats) -> Floats:
    e: Floats = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class Update:
    """An update of the parameters. seconds: when. samples: in it. stale: weights that its gradient
    is of; None for the present ones. share: of an update of all workers."""

    seconds: float
    samples: int
    stale: Any = None
    share: float = 1.0


Scheme = Callable[[Cluster, Learner | None], Iterator[Update]]


def _iterations(cluster: Cluster, step: Callable[[float], tuple[float, int]]) -> Iterator[Update]:
    now = 0.0
    while True:
        spent, samples = step(now)
        now += spent
        yield Update(now, samples)


def bsp(cluster: Cluster, learner: Learner | None = None) -> Iterator[Update]:
    """All workers wait for the slowest."""
    n, x = len(cluster.workers), cluster.samples

    def step(now: float) -> tuple[float, int]:
        return max(_ends(cluster, [x] * n, now)), n * x

    return _iterations(cluster, step)


def _ends(cluster: Cluster, counts: Sequence[int], now: float) -> list[float]:
    """Return when the gradient of each worker is there, after `now`."""
    every = (*cluster.workers, *cluster.spares)
    return [cluster.seconds(i, x, now) + every[i].push for i, x in enumerate(counts)]


def redundant(cluster: Cluster, learner: Learner | None = None) -> Iterator[Update]:
    """Spares compute too, and a step takes as many gradients as there are other workers."""
    n, x = len(cluster.workers), cluster.samples

    def step(now: float) -> tuple[float, int]:
        ends = _ends(cluster, [x] * (n + len(cluster.spares)), now)
        return sorted(ends)[n - 1], n * x

    return _iterations(cluster, step)


def backup(cluster: Cluster, learner: Learner | None = None) -> Iterator[Update]:
    """No spares: a step does without the gradients of the slowest sixteenth of the workers."""
    n, x = len(cluster.workers), cluster.samples
    kept = n - max(n // 16, 1)

    def step(now: float) -> tuple[float, int]:
        return sorted(_ends(cluster, [x] * n, now))[kept - 1], kept * x

    return _iterations(cluster, step)


def flexrr(cluster: Cluster, learner: Learner | None = None) -> Iterator[Update]:
    """A worker that is behind another gives it samples during the iteration (Harlap et al. 2016).

    Samples are processed one by one. Progress is compared `CHECKS` times; all others may help.
    """
    n, x = len(cluster.workers), cluster.samples

    def step(now: float) -> tuple[float, int]:
        speeds = np.array([cluster.rate(i, now) / w.each for i, w in enumerate(cluster.workers)])
        left, late = np.full(n, float(x)), np.zeros(n)
        lasts = x / speeds
        interval, at = float(lasts.max()) / CHECKS, 0.0
        start = np.array([w.fixed for w in cluster.workers])  # before the first sample
        while left.max() > 1e-9:
            active = np.clip(at + interval - start - late, 0, interval)
            left = np.maximum(left - speeds * active, 0)
            at += interval
            ends = left / speeds  # by what each has seen of its own progress
            for slow in np.argsort(-ends):
                fast = int(np.argmin(left))
                if (left[slow] - left[fast]) / x > BEHIND and left[slow] > MOVED * x:
                    left[slow] -= MOVED * x
                    left[fast] += MOVED * x
                    late[[slow, fast]] += MESSAGE * interval * CHECKS
        return at + max(w.push for w in cluster.workers), n * x

    return _iterations(cluster, step)


def lbbsp(predictor: Any = None) -> Scheme:
    """Return LB-BSP: by predicted speeds, or without a predictor by moves between two workers."""

    def scheme(cluster: Cluster, learner: Learner | None = None) -> Iterator[Update]:
        n, x = len(cluster.workers), cluster.samples
        speeds = None if predictor is None else SpeedRule([x] * n, predictor)
        pairs = PairRule([x] * n)

        def step(now: float) -> tuple[float, int]:
            counts = pairs.counts if speeds is None else speeds.counts
            ends = _ends(cluster, counts, now)
            if speeds is None:
                pairs.update(ends)
            else:  # the use of the next iteration is known when it is dealt
                use = [cluster.use(i, now + max(ends)) for i in range(n)]
                speeds.update(ends, use, use)
            return max(ends), n * x

        return _iterations(cluster, step)

    return scheme


def stale(bound: float) -> Scheme:
    """Return ASP, or SSP: a worker that is `bound` iterations ahead of the slowest waits."""

    def scheme(cluster: Cluster, learner: Learner | None = None) -> Iterator[Update]:
        n, x = len(cluster.workers), cluster.samples
        done, waiting = [0] * n, set[int]()
        seen = [None if learner is None else learner.weights] * n
        running = [(end, i) for i, end in enumerate(_ends(cluster, [x] * n, 0.0))]
        heapq.heapify(running)
        while True:
            now, i = heapq.heappop(running)
            done[i] += 1
            yield Update(now, x, seen[i], 1 / n)
            waiting.add(i)
            for j in sorted(waiting):
                if done[j] - min(done) < bound:
                    waiting.remove(j)
                    seen[j] = None if learner is None else learner.weights
                    worker = cluster.workers[j]
                    end = now + cluster.seconds(j, x, now) + worker.push
                    heapq.heappush(running, (end, j))

    return scheme


def throughput(scheme: Scheme, cluster: Cluster, seconds: float) -> float:
    """Return the samples a second, after a third of the time, in which LB-BSP learns."""
    begun, total, last = seconds / 3, 0, 0.0
    for update in scheme(cluster.fresh(), None):
        last = update.seconds
        if last > seconds:
            break
        total += update.samples if last > begun else 0
    return total / (seconds - begun)


def time_to_loss(
    scheme: Scheme, cluster: Cluster, target: float, rates: Sequence[float], most: float
) -> float:
    """Return the seconds until the loss is `target`, with the best of some rates; `most` at most.

    Batches are a quarter as large as those that the times are of.
    """
    best = most
    for rate in rates:
        learner, next_look, average = Learner(rate), 1.0, np.inf
        progress = 0.0
        for update in scheme(cluster.fresh(), learner):
            if update.seconds >= best:
                break
            weights = learner.weights if update.stale is None else update.stale
            with np.errstate(over="ignore", invalid="ignore"):
                learner.apply(learner.gradient(weights, max(update.samples // 4, 1)), update.share)
            progress += update.share
            if progress >= next_look:
                next_look, loss = progress + 2, learner.loss()
                if not np.isfinite(loss):
                    break
                average = loss
                if average <= target:
                    best = update.seconds
                    break
    return best
