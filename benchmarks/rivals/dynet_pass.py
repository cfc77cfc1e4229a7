"""A pass of a DyNet program over batches, for `benchmarks.rivals.program`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.rivals.program import Given, Values

try:
    import dynet_config

    dynet_config.set(autobatch=1, random_seed=1)  # has an effect only before dynet is imported
    import dynet as dy
except ImportError as error:
    raise SystemExit(f"{error}: pip install numpy dyNET38 (Python 3.11)") from error

__all__ = ["DyNetPass", "dy", "lstm_arrays", "mean_cross_entropy", "parameters"]


def parameters(values: Values, tables: Sequence[str] = ()) -> tuple[Any, dict[str, Any]]:
    """Return a collection and its parameters by name; matrices are transposed, as DyNet's are.

    tables: names of those whose rows are looked up.
    """
    collection = dy.ParameterCollection()
    return collection, {
        name: collection.lookup_parameters_from_numpy(value)
        if name in tables
        else collection.parameters_from_numpy(value.T.copy())
        for name, value in values.items()
    }


def lstm_arrays(values: Values, name: str) -> Values:
    """Return W, U and b of an LSTM for `dy.vanilla_lstm_gates`, which adds 1 to the gate f.

    Both have the gates in the order i, f, o, u.
    """
    found = {f"{name}.{key}": values[f"{name}.{key}"] for key in "WUb"}
    ones = np.repeat(np.array([0, 1, 0, 0], np.float32), len(values[f"{name}.U"]))
    return found | {f"{name}.b": values[f"{name}.b"] - ones}


def mean_cross_entropy(logits: Any, labels: Sequence[int]) -> Any:
    """Return the mean loss of a batch of rows of logits."""
    return dy.sum_batches(dy.pickneglogsoftmax_batch(logits, labels)) * (1 / len(labels))


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
