"""Arguments and result of `Trainer.fit`, and the checks of the arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cavs.config import require, require_count, require_flag
from cavs.errors import ConfigError
from cavs.train.batches import Loader
from cavs.train.carry import check_carry
from cavs.train.metrics import AnyMetric, Measure, Metric
from cavs.train.monitors import Monitor
from cavs.train.policy import Policy

Metrics = Iterable[AnyMetric | Measure] | Mapping[str, AnyMetric | Measure]
OnEvent = Callable[[str, Mapping[str, Any]], object]


@dataclass(frozen=True)
class FitOptions:
    """The arguments of `Trainer.fit`; see there."""

    epochs: int
    dev: Iterable[Any] | None = None
    metrics: Metrics = ()
    monitor: str | None = None
    patience: int | None = None
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int | None = None
    restore_best: bool = False
    log: str | os.PathLike[str] | None = None
    progress: bool = True
    on_event: OnEvent | None = None
    policies: Sequence[Policy] = ()
    monitors: Sequence[Monitor] = ()
    carry: Mapping[str, str] | None = None

    def check(self, train: object) -> None:
        """Raise `ConfigError` for an argument that is invalid or does not fit the others."""
        require(isinstance(train, Loader), "train", train, "a cavs.DataLoader")
        callback = self.on_event
        holds = callback is None or callable(callback)
        require(holds, "on_event", callback, "a function or None")
        require_count("epochs", self.epochs)
        require_flag("restore_best", self.restore_best)
        require_flag("progress", self.progress)
        check_carry(self.carry)
        for name, loader in (("train", train), ("dev", self.dev)):
            if self.carry and isinstance(loader, Loader) and not loader.keeps_order:
                raise ConfigError(
                    f"carry={self.carry!r}, but {name} has the graphs of an epoch in an order of "
                    "its own: graph i of a batch would not continue that of the batch before",
                    hint="DataLoader(cavs.data.parallel_chains(...), count) without shuffle, "
                    "bucket and sampler",
                )
        if self.dev is not None:
            again = isinstance(self.dev, Iterable) and not isinstance(self.dev, Iterator)
            require(again, "dev", self.dev, "a cavs.DataLoader or a list of batches")
            _check_batches(self.dev)
        if self.patience is not None:
            require_count("patience", self.patience, 0)
        if self.checkpoint_every is not None:
            require_count("checkpoint_every", self.checkpoint_every)
            if self.checkpoint is None:
                raise ConfigError(
                    f"checkpoint_every={self.checkpoint_every} without checkpoint",
                    hint='pass checkpoint="runs/model.safetensors"',
                )
        for name, value in (("patience", self.patience), ("restore_best", self.restore_best)):
            if value not in (None, False) and self.dev is None:
                raise ConfigError(
                    f"{name}={value} without dev", hint="pass dev=, a loader to evaluate on"
                )
        for name, path in (("checkpoint", self.checkpoint), ("log", self.log)):
            require(isinstance(path, str | os.PathLike | None), name, path, "a path or None")

    def monitored(self, metrics: Sequence[AnyMetric]) -> AnyMetric:
        """Return the metric that tells the best epoch. Raises `ConfigError` if there is none."""
        loss = Metric("loss", lambda outputs, batch: (0.0, 0.0), "lower")
        known: dict[str, AnyMetric] = {metric.name: metric for metric in [*metrics, loss]}
        if self.monitor is None:
            return next(iter(known.values())) if self.dev is not None else loss
        if self.monitor not in known:
            raise ConfigError(
                f"monitor is {self.monitor!r}, but the metrics are {', '.join(known)}",
                hint="pass one of them",
            )
        if self.dev is None and self.monitor != loss.name:
            raise ConfigError(
                f"monitor={self.monitor!r} without dev", hint="pass dev=, a loader to evaluate on"
            )
        return known[self.monitor]


def _check_batches(dev: Iterable[Any]) -> None:
    """Check the batches of a list; those of a loader are collated later."""
    if isinstance(dev, Collection):
        require(len(dev) > 0, "dev", dev, "at least one batch")
        for i, item in enumerate(dev):
            need = "a batch: cavs.batch(graphs), or a cavs.DataLoader"
            require(hasattr(item, "num_graphs"), f"dev[{i}]", item, need)


@dataclass
class FitResult:
    """Result of `Trainer.fit`.

    `epochs` has one record for each epoch of this call: ``epoch``, ``train_loss`` (a mean over
    batches), ``lr``, ``step``, ``seconds``, ``graphs_per_second`` and the values on `dev` as
    ``dev_NAME``. `stopped_early` tells of the end of patience. `status` is ``"finished"``, or
    ``"stopped"`` where a policy ended the run.
    """

    epochs: list[dict[str, Any]] = field(default_factory=list)
    monitor: str = "loss"
    best: float | None = None
    best_epoch: int | None = None
    stopped_early: bool = False
    status: str = "finished"
