"""`Evaluator`: loss and metrics of a model over the batches of a loader."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.config import require
from cavs.errors import ConfigError, DeviceError, NumericsError
from cavs.train.batches import Loader, iterating
from cavs.train.carry import Carry, check_carry
from cavs.train.coordination import Coordinator
from cavs.train.engine import Engine
from cavs.train.fit_options import Metrics
from cavs.train.metrics import AnyMetric, DataSetMetric, Metric, as_metrics
from cavs.train.progress import Progress
from cavs.train.stepping import TrainingState, roll_back

Array = NDArray[Any]


class Evaluator:
    """Evaluates the model of `state` on `engine`."""

    def __init__(self, state: TrainingState, engine: Engine, coordinator: Coordinator) -> None:
        self.state, self.engine, self.coordinator = state, engine, coordinator

    def prepare(self, batch: Any) -> None:
        """Build the schedule of a batch to be evaluated; safe in a background thread."""
        self.engine.prepare(batch, training=False)

    def evaluate(
        self,
        loader: Iterable[Any],
        metrics: Metrics = (),
        *,
        progress: bool = False,
        stop: Callable[[], bool] = lambda: False,
        in_fit: bool = False,
        carry: Mapping[str, str] | None = None,
    ) -> dict[str, float]:
        """Return ``"loss"`` and every metric by name; see `Trainer.evaluate`.

        stop: Asked after each batch. in_fit: True if this evaluation is part of a `fit`.
        """

        def evaluate(batches: Iterable[Any]) -> dict[str, float]:
            used = as_metrics(metrics)
            require(isinstance(batches, Iterable), "loader", batches, "a cavs.DataLoader")
            if isinstance(batches, Loader) and batches.prepare is None:
                batches.prepare = self.prepare
            check_carry(carry)
            if carry and self.coordinator.agreed_size() > 1:
                raise ConfigError(
                    f"carry={dict(carry)!r} in an evaluation by {self.coordinator.agreed_size()} "
                    "ranks, each of which evaluates other batches",
                    hint="evaluate on one process: cavs.Trainer(model, ...).evaluate",
                )
            return self._evaluate(batches, used, progress, stop, in_fit, Carry(carry))

        return self.coordinator.run_evaluation(evaluate, loader)

    def _evaluate(
        self,
        loader: Iterable[Any],
        metrics: Sequence[AnyMetric],
        progress: bool,
        stop: Callable[[], bool],
        in_fit: bool,
        carry: Carry,
    ) -> dict[str, float]:
        means = [metric for metric in metrics if isinstance(metric, Metric)]
        wholes = [metric for metric in metrics if isinstance(metric, DataSetMetric)]
        sums = {metric.name: [0.0, 0.0] for metric in means}
        rows: dict[str, list[Array]] = {metric.name: [] for metric in wholes}
        loss, weight, result = 0.0, 0.0, None
        total = len(loader) if isinstance(loader, Sized) else 0
        with (
            Progress("evaluate", total, enabled=progress) as bar,
            iterating(_whole_epoch(loader)) as batches,
        ):
            for batch in self.coordinator.local_batches(batches):
                batch = carry.into(batch)  # noqa: PLW2901
                result = self._run(batch)
                if carry:
                    carry.take(batch, result)
                loss += result.loss * result.weight
                weight += result.weight
                outputs = {**result.outputs, "loss": result.loss, "weight": result.weight}
                for metric in means:
                    part, count = metric(outputs, batch)
                    sums[metric.name][0] += part
                    sums[metric.name][1] += count
                for whole in wholes:
                    rows[whole.name].append(whole.rows(outputs, batch))
                bar.advance(batch.num_graphs)
                if self.coordinator.should_end_evaluation(stop(), in_fit=in_fit):
                    break
        seen = float(result is not None)
        flat = [loss, weight, seen, *(x for metric in means for x in sums[metric.name])]
        reduced = self.coordinator.reduce_metrics(np.array(flat, np.float64))
        loss, weight, seen, *rest = reduced.tolist()
        require(seen > 0, "loader", loader, "at least one batch")
        values = {"loss": loss / weight if weight else math.nan}
        for metric, part, count in zip(means, rest[::2], rest[1::2], strict=True):
            values[metric.name] = metric.finish(part / count) if count else math.nan
        for whole in wholes:
            values[whole.name] = self.coordinator.whole_value(rows[whole.name], whole.value)
        return {name: values[name] for name in ("loss", *(metric.name for metric in metrics))}

    def _run(self, batch: Any) -> Any:
        state = self.state
        try:
            return self.engine.evaluate(batch)
        except DeviceError as error:
            roll_back(state, self.engine, error)
            raise
        except NumericsError as error:
            raise error.reworded(
                f"evaluation after step {state.steps}: {error.what}\n  {state.last_checkpoint_line}"
            ) from error


def _whole_epoch(loader: Iterable[Any]) -> Iterable[Any]:
    """Return the batches of an epoch without advancing `loader`, which a training may use too.

    A subclass with an ``__iter__`` of its own is iterated by that.
    """
    if isinstance(loader, Loader) and type(loader).__iter__ is Loader.__iter__:
        return loader.whole_epoch()
    return loader
