"""Monitors: numbers about gradients and speed, computed on the way through a step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cavs.config import require, require_count, require_number
from cavs.errors import CheckpointError, ConfigError

Array = NDArray[Any]
#: A gradient: an array of the shape of the parameter, or of a table its touched rows and values.
Gradient = Array | tuple[Array, Array]
NAN = float("nan")


@dataclass(frozen=True)
class StepFacts:
    """Facts of a step that monitors read, equal on all ranks.

    seconds: from the end of the step before to the end of this one, on rank 0. graphs: of the
    global batch. grad_norm: of the gradient of the batch. rank_graphs, rank_seconds: graphs and
    seconds of forward and backward of every replica; one entry on one process. rank_squares: the
    squared norm of the mean gradient over the graphs of every replica; empty if no monitor reads
    it.
    """

    seconds: float
    graphs: int
    grad_norm: float
    rank_graphs: tuple[int, ...]
    rank_seconds: tuple[float, ...]
    rank_squares: tuple[float, ...] = ()


@dataclass(kw_only=True)
class Monitor:
    """Base class of monitors.

    name: Key in `TrainingRun.measures` and in the log. interval: it observes every `interval`-th
    step. reads_norms: True if it reads `StepFacts.rank_squares`. wants: ``"local"`` and
    ``"reduced"``, the gradients that `observe` gets.
    """

    name: ClassVar[str] = ""
    reads_norms: ClassVar[bool] = False
    wants: ClassVar[tuple[str, ...]] = ()
    interval: int = 1
    value: float = field(default=NAN, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_count("interval", self.interval)
        allowed = set(self.wants) <= {"local", "reduced"}
        require(allowed, "wants", self.wants, "a tuple of 'local' and 'reduced'")

    def observe(self, parameter: str, local: Gradient | None, reduced: Gradient | None) -> None:
        """Take the gradient of a parameter, after its exchange and before the update.

        local: of this rank before the exchange, scaled so that the mean over ranks is the gradient
        of the batch; None unless wanted. reduced: the mean over ranks; None unless wanted, and
        where other ranks own some of it. Both are read-only and valid within the call.
        """

    def end_step(self, facts: StepFacts) -> None:
        """Take the facts of a step and set `value`."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the monitor has learned, as JSON values; checkpoints store it."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state_dict`."""


@dataclass(kw_only=True)
class NoiseScale(Monitor):
    """Gradient noise scale in graphs: about tr(covariance) / squared norm of the true gradient.

    It follows McCandlish et al. 2018, appendix A, and Mai et al., KungFu, OSDI 2020, section 6: the
    norms of a small and a large batch separate signal and noise. Here the small batch is the part
    of a rank, so that nothing is communicated but one number a rank; see `noise_and_signal`. Both
    estimates are smoothed by an exponential moving average each, with weight `alpha` for the new
    value (KungFu 0.1).

    `value` stays as it was where the signal is not positive, and on one rank.
    """

    name: ClassVar[str] = "noise_scale"
    reads_norms: ClassVar[bool] = True
    alpha: float = 0.1
    _signal: float = field(default=NAN, init=False, repr=False, compare=False)
    _noise: float = field(default=NAN, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("alpha", self.alpha, "a number in (0, 1]", lambda x: 0 < x <= 1)

    def end_step(self, facts: StepFacts) -> None:
        found = noise_and_signal(facts)
        if found is None:
            return
        noise, signal = found
        self._noise = _smooth(self._noise, noise, self.alpha)
        self._signal = _smooth(self._signal, signal, self.alpha)
        if self._signal > 0:
            self.value = self._noise / self._signal

    def state_dict(self) -> dict[str, Any]:
        found = {"noise": self._noise, "signal": self._signal, "value": self.value}
        return {name: None if math.isnan(x) else x for name, x in found.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._noise, self._signal, self.value = _numbers(state, "noise", "signal", "value")


def noise_and_signal(facts: StepFacts) -> tuple[float, float] | None:
    """Return unbiased estimates of tr(covariance) and of the squared norm of the true gradient.

    They are those of one step; None unless two ranks have parts of the batch. With b_i graphs and
    mean gradient g_i on K ranks, B graphs and gradient g in all, the noise is the variance between
    groups, (sum b_i |g_i|² - B |g|²) / (K - 1), and the signal |g|² - noise / B. For equal parts
    that is the mean over ranks of the estimates of the two papers; for unequal ones it is free of
    the true gradient, so that small parts do not make it noisy.
    """
    total = sum(facts.rank_graphs)
    parts = [n for n in facts.rank_graphs if n > 0]
    if not facts.rank_squares or len(parts) < 2:
        return None
    pairs = zip(facts.rank_graphs, facts.rank_squares, strict=True)
    mean = facts.grad_norm**2
    noise = (sum(n * square for n, square in pairs if n > 0) - total * mean) / (len(parts) - 1)
    return noise, mean - noise / total


@dataclass(kw_only=True)
class GradientVariance(Monitor):
    """Trace of the covariance of the gradients of the ranks, weighted by their graphs.

    The trace of mean(g²) - mean(g)² needs no reduction of g² (KungFu, section 6.3, reduces one for
    each gradient): it is the mean of the squared norms minus the squared norm of the mean.
    """

    name: ClassVar[str] = "gradient_variance"
    reads_norms: ClassVar[bool] = True

    def end_step(self, facts: StepFacts) -> None:
        if facts.rank_squares:
            total = sum(facts.rank_graphs)
            pairs = zip(facts.rank_graphs, facts.rank_squares, strict=True)
            mean = sum(graphs * square for graphs, square in pairs) / total
            self.value = max(0.0, mean - facts.grad_norm**2)


@dataclass(kw_only=True)
class TemporalVariance(Monitor):
    """Trace of the covariance of this rank's last `window` gradients; the ranks' values differ."""

    name: ClassVar[str] = "temporal_variance"
    wants: ClassVar[tuple[str, ...]] = ("local",)
    window: int = 8
    _kept: dict[str, deque[Gradient]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("window", self.window, 2)

    def observe(self, parameter: str, local: Gradient | None, reduced: Gradient | None) -> None:
        assert local is not None
        copied = tuple(map(np.copy, local)) if isinstance(local, tuple) else local.copy()
        kept = self._kept.setdefault(parameter, deque(maxlen=self.window))
        kept.append(copied)  # type: ignore[arg-type]  # a pair of arrays stays one

    def end_step(self, facts: StepFacts) -> None:
        if self._kept and all(len(kept) == self.window for kept in self._kept.values()):
            self.value = sum(_trace(kept) for kept in self._kept.values())


def _trace(gradients: Sequence[Gradient]) -> float:
    """Return the sum over elements of their variance."""
    values = [g[1] if isinstance(g, tuple) else g for g in gradients]
    squares = sum(float(np.vdot(v, v)) for v in values) / len(values)
    if isinstance(gradients[0], tuple):
        rows = np.concatenate([g[0] for g in gradients])
        _, positions = np.unique(rows, return_inverse=True)
        total = np.zeros((positions.max(initial=-1) + 1, *values[0].shape[1:]))
        np.add.at(total, positions, np.concatenate(values))
    else:
        total = np.asarray(np.sum(values, axis=0, dtype=np.float64))
    mean = total / len(values)
    return max(0.0, squares - float(np.vdot(mean, mean)))


@dataclass(kw_only=True)
class Throughput(Monitor):
    """Graphs per second of all ranks together, over the last `window` steps."""

    name: ClassVar[str] = "throughput"
    window: int = 10
    _last: deque[tuple[int, float]] = field(
        default_factory=deque, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("window", self.window)

    def end_step(self, facts: StepFacts) -> None:
        self._last.append((facts.graphs, facts.seconds))
        while len(self._last) > self.window:
            self._last.popleft()
        seconds = sum(s for _, s in self._last)
        if seconds > 0:
            self.value = sum(n for n, _ in self._last) / seconds


@dataclass(kw_only=True)
class RankSpeed(Monitor):
    """Speed of the slowest rank over that of the fastest, in graphs per second of computing.

    speeds: of every replica in the last step; empty before the first.
    """

    name: ClassVar[str] = "rank_speed"
    speeds: tuple[float, ...] = field(default=(), init=False, repr=False, compare=False)

    def end_step(self, facts: StepFacts) -> None:
        pairs = zip(facts.rank_graphs, facts.rank_seconds, strict=True)
        self.speeds = tuple(graphs / max(seconds, 1e-9) for graphs, seconds in pairs)
        busy = [speed for speed in self.speeds if speed > 0]
        if busy:
            self.value = min(busy) / max(busy)


class Monitors:
    """The monitors of a `fit`, one of each name."""

    def __init__(self, monitors: Iterable[Monitor]) -> None:
        self.monitors: dict[str, Monitor] = {}
        for i, monitor in enumerate(monitors):
            require(isinstance(monitor, Monitor), f"monitors[{i}]", monitor, "a Monitor")
            require(bool(monitor.name), f"monitors[{i}].name", monitor.name, "a text")
            known = self.monitors.setdefault(monitor.name, monitor)
            if known != monitor:
                raise ConfigError(
                    f"two monitors are called {monitor.name}: {known} and {monitor}",
                    hint="give both the same options, or one of them another name",
                )

    def due(self, step: int) -> list[Monitor]:
        """Return the monitors that observe the step after `step` updates."""
        return [m for m in self.monitors.values() if step % m.interval == 0]

    def end_step(self, step: int, facts: StepFacts) -> None:
        """Give the facts of the step after `step` updates to those that observe it."""
        for monitor in self.due(step):
            monitor.end_step(facts)

    def values(self) -> dict[str, float]:
        """Return the last value of every monitor."""
        return {name: monitor.value for name, monitor in self.monitors.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the monitors by name, as JSON values."""
        return {name: monitor.state_dict() for name, monitor in self.monitors.items()}

    def load_state_dict(self, stored: Any) -> None:
        """Continue from `state_dict`; a monitor that it does not have begins without one."""
        if not isinstance(stored, Mapping):
            raise _invalid(stored)
        for name, monitor in self.monitors.items():
            if stored.get(name):
                monitor.load_state_dict(stored[name])


def _smooth(old: float, new: float, alpha: float) -> float:
    return new if math.isnan(old) else alpha * new + (1 - alpha) * old


def _numbers(state: Mapping[str, Any], *names: str) -> list[float]:
    try:
        return [NAN if state[name] is None else float(state[name]) for name in names]
    except (KeyError, TypeError, ValueError) as error:
        raise _invalid(state) from error


def _invalid(stored: object) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint has an invalid state of a monitor: {stored!r:.80}",
        hint="take an older checkpoint",
    )


def monitors_of(given: Sequence[Monitor], policies: Iterable[Any]) -> Monitors:
    """Return the monitors of a `fit` and those that its policies read.

    Monitors that a policy has from its class are copied, since other trainings have them too.
    """
    read = [m if "monitors" in vars(p) else deepcopy(m) for p in policies for m in p.monitors]
    return Monitors([*given, *read])
