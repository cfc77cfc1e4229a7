"""The batches of `Trainer.evaluate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from cavs.config import require
from cavs.errors import DeviceError, NumericsError
from cavs.train.loader import DataLoader, iterating
from cavs.train.metrics import Metric
from cavs.train.progress import Progress

if TYPE_CHECKING:
    from cavs.train.trainer import Trainer


def evaluate(
    trainer: Trainer,
    loader: Iterable[Any],
    used: list[Metric],
    progress: bool,
    stop: Callable[[], bool],
) -> dict[str, float]:
    """See `Trainer.evaluate`."""
    sums = {metric.name: [0.0, 0.0] for metric in used}
    loss, weight, result = 0.0, 0.0, None
    total = len(loader) if isinstance(loader, Sized) else 0
    # A training may go through the same loader, in whose order an evaluation is not to be.
    # What a class of its own goes through, only its __iter__ knows.
    every = (
        loader.whole_epoch()
        if isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__
        else loader
    )
    with (
        Progress("evaluate", total, enabled=progress) as bar,
        iterating(every) as batches,
    ):
        for batch in trainer._mine(batches):
            try:
                result = trainer.session.evaluate(batch)
            except DeviceError as error:
                trainer._go_back(error)
                raise
            except NumericsError as error:
                raise error.reworded(
                    f"evaluation after step {trainer.steps}: {error.what}\n"
                    f"  last good checkpoint: {trainer.last_checkpoint or 'none was written'}"
                ) from error
            loss += result.loss * result.weight
            weight += result.weight
            outputs = {**result.outputs, "loss": result.loss, "weight": result.weight}
            for metric in used:
                part, count = metric(outputs, batch)
                sums[metric.name][0] += part
                sums[metric.name][1] += count
            bar.advance(batch.num_graphs)
            if stop():
                break
    seen = float(result is not None)
    flat = [loss, weight, seen, *(x for metric in used for x in sums[metric.name])]
    loss, weight, seen, *rest = trainer._combined(np.array(flat, np.float64)).tolist()
    require(seen > 0, "loader", loader, "at least one batch")
    values = {"loss": loss / weight if weight else math.nan}
    for metric, part, count in zip(used, rest[::2], rest[1::2], strict=True):
        values[metric.name] = metric.finish(part / count) if count else math.nan
    return values
