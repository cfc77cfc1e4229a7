"""Policies that change how much the ranks exchange: by a schedule, by noise, or once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cavs.config import require, require_count, require_number
from cavs.errors import ConfigError
from cavs.train.monitors import NoiseScale
from cavs.train.policy import Policy, TrainingRun

_PAIR = re.compile(r"(\d+):([0-9.eE+-]+)")


def parse_schedule(text: Any) -> list[tuple[int, float]]:
    """Return the pairs of ``EPOCH:FRACTION;EPOCH:FRACTION``, in the order of epochs; ConfigError.

    Epochs count from 0, and the first pair is that of epoch 0.
    """
    hint = "write it like '0:1;60:0.1': all gradients from epoch 0 on, a tenth from epoch 60 on"
    found: list[tuple[int, float]] = []
    for part in str(text).split(";"):
        match = _PAIR.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"schedule is {text!r}: {part!r} is no EPOCH:FRACTION", hint=hint)
        try:
            found.append((int(match[1]), float(match[2])))
        except ValueError:
            raise ConfigError(
                f"schedule is {text!r}: {match[2]!r} is no number", hint=hint
            ) from None
        if not 0 < found[-1][1] <= 1:
            raise ConfigError(f"schedule is {text!r}: {match[2]} is not in (0, 1]", hint=hint)
    epochs = [epoch for epoch, _ in found]
    if epochs[0] != 0 or sorted(set(epochs)) != epochs:
        raise ConfigError(f"schedule is {text!r}: epochs are {epochs}", hint=hint)
    return found


class ExchangeSchedule(Policy):
    """Exchanges a part of the gradients in a step, by a schedule over epochs.

    schedule: ``"EPOCH:FRACTION;..."``, with epochs from 0; 1 is all-reduce. Source: the thesis
    before KungFu, section 4.4.
    """

    def __init__(self, schedule: str = "0:1;60:0.1") -> None:
        self.schedule = schedule
        self._pairs = parse_schedule(schedule)

    def fraction(self, epoch: int) -> float:
        """Return the fraction in an epoch, counted from 0."""
        return next(x for first, x in reversed(self._pairs) if first <= epoch)

    def before_train(self, run: TrainingRun) -> None:
        """Set the fraction of an epoch within which a run resumes."""
        self.before_epoch(run)

    def before_epoch(self, run: TrainingRun) -> None:
        budget = self.fraction(run.epoch - 1)
        if run.table["exchange_budget"] != budget:
            run.set_exchange_budget(budget)


class NoiseExchange(Policy):
    """Exchanges the less, the noisier the gradients are: ``first * (noise / batch) ** -power``.

    The fraction is clamped to [least, 1] and set before an epoch, once the gradient noise scale is
    known. Ranks take the mean of their values. Source: the thesis before KungFu, section 4.5, which
    proposes it without a formula.
    """

    def __init__(
        self, first: float = 1.0, power: float = 0.5, least: float = 0.1, alpha: float = 0.1
    ) -> None:
        for name, value in (("first", first), ("least", least)):
            require_number(name, value, "a number in (0, 1]", lambda x: 0 < x <= 1)
        require_number("power", power, "a number of at least 0", lambda x: x >= 0)
        self.first, self.power, self.least = first, power, least
        self.monitors = [NoiseScale(alpha=alpha)]
        self._budget: float | None = None  # that was set last

    def before_train(self, run: TrainingRun) -> None:
        """Go on with the budget of a run that resumes."""
        if self._budget is not None:
            run.set_exchange_budget(self._budget)

    def before_epoch(self, run: TrainingRun) -> None:
        noise = run.all_reduce(run.noise_scale, "mean")
        if not noise > 0:  # unknown, or no gradient to speak of
            return
        fraction = self.first * (noise / run.batch_size) ** -self.power
        self._budget = round(min(1.0, max(self.least, fraction)), 3)
        run.set_exchange_budget(self._budget)

    def state_dict(self) -> dict[str, Any]:
        return {"budget": self._budget}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._budget = state["budget"]


class SwitchStrategy(Policy):
    """Goes on with another strategy after `step` steps, such as from SMA to all-reduce."""

    def __init__(self, step: int = 1000, strategy: str | None = None) -> None:
        require_count("step", step)
        require(strategy is None or isinstance(strategy, str), "strategy", strategy, "a name")
        self.step, self.strategy = step, strategy

    def after_step(self, run: TrainingRun) -> None:
        self._switch(run)

    def before_train(self, run: TrainingRun) -> None:
        self._switch(run)

    def _switch(self, run: TrainingRun) -> None:
        if run.step >= self.step and run.table["strategy"] != self.strategy:
            run.set_strategy(self.strategy)
