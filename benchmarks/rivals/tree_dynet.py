"""Trees of the treebank in DyNet: what the programs for models of trees share.

Expressions are built for one vertex at a time, in each step, and batched by DyNet itself; what its
users can do besides is done: the output layer and the loss run once over all vertices.
"""

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

# The vectors of all vertices of a tree, (left, right, token) of each vertex given.
States = Callable[[dict[str, Any], list[tuple[int, int, int]]], list[Any]]


def prepare(
    values: Values, given: Given, tables: Sequence[str], states: States
) -> Callable[[], float]:
    """Return a pass over all batches, which trains by SGD or computes the losses.

    tables: parameters that are looked up. DyNet stores matrices transposed.
    """
    collection = dy.ParameterCollection()  # which the pass keeps: parameters do not
    p: dict[str, Any] = {}
    for name, value in values.items():
        if name in tables:
            p[name] = collection.lookup_parameters_from_numpy(value)
        else:
            p[name] = collection.parameters_from_numpy(np.ascontiguousarray(value.T))
    trainer = dy.SimpleSGDTrainer(collection, given["lr"])
    trainer.set_clip_threshold(-1)  # the others clip no gradients
    batches = [
        [(list(zip(left, right, token, strict=True)), label) for left, right, token, label in batch]
        for batch in given["batches"]
    ]

    def step(batch: list[Any]) -> float:
        dy.renew_cg()
        rows, labels = list[Any](), list[int]()
        for tree, label in batch:
            rows += states(p, tree)
            labels += label
        h = dy.concatenate_to_batch(rows)
        logits = dy.affine_transform([p["output.bias"], p["output.weight"], h])
        loss = dy.sum_batches(dy.pickneglogsoftmax_batch(logits, labels)) * (1 / len(labels))
        found = float(loss.value())
        if given["training"]:
            loss.backward()
            trainer.update()
        return found

    def run(kept: Any = collection) -> float:
        return [step(batch) for batch in batches][-1]

    return run
