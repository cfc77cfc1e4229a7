"""A pass of a DyNet program over batches, for `benchmarks.rivals.program`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.rivals.program import Given, Values

try:
    import dynet_config

    dynet_config.set(autobatch=1, random_seed=1)  # has an effect only before dynet is imported
    import dynet as dy
except ImportError as error:
    raise SystemExit(f"{error}: pip install numpy dyNET38 (Python 3.11)") from error

__all__ = ["DyNetPass", "dy", "parameters"]


def parameters(values: Values) -> tuple[Any, dict[str, Any]]:
    """Return a collection and its parameters by name; matrices are transposed, as DyNet's are."""
    collection = dy.ParameterCollection()
    return collection, {
        name: collection.parameters_from_numpy(value.T.copy()) for name, value in values.items()
    }


class DyNetPass:
    """Trains on all batches, or computes their losses, and returns the last.

    loss_of: returns the expression of the mean loss of a batch.
    """

    def __init__(self, collection: Any, loss_of: Callable[[Any], Any], given: Given) -> None:
        self.collection = collection  # DyNet does not keep it alive
        self.trainer = dy.SimpleSGDTrainer(collection, learning_rate=given["lr"])
        self.trainer.set_clip_threshold(-1)  # the others clip no gradients
        self.loss_of, self.given = loss_of, given

    def __call__(self) -> float:
        for batch in self.given["batches"]:
            dy.renew_cg()
            loss = self.loss_of(batch)
            value = float(loss.value())
            if self.given["training"]:
                loss.backward()
                self.trainer.update()
        return value
