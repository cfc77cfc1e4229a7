"""The network over clustering trees in DyNet, which batches equal operations itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.rivals.dynet_pass import DyNetPass, dy, mean_cross_entropy, parameters
from benchmarks.rivals.program import Given, Values, serve


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return the pass over all batches."""
    collection, p = parameters(values)

    def layer(name: str, x: Any) -> Any:
        return dy.affine_transform([p[f"{name}.bias"], p[f"{name}.weight"], x])

    def root(jet: Any) -> Any:
        h = list[Any]()
        for below, momentum in zip(jet["children"], jet["momentum"], strict=True):
            own = dy.rectify(layer("tree.embedding", dy.inputVector(momentum)))
            if below:
                joined = dy.concatenate([h[below[0]], h[below[1]], own])
                own = dy.rectify(layer("tree.joined", joined))
            h.append(own)
        return h[-1]

    def loss(jets: list[Any]) -> Any:
        roots = dy.concatenate_to_batch([root(jet) for jet in jets])
        logits = layer("output", dy.rectify(layer("hidden", roots)))
        return mean_cross_entropy(logits, [jet["label"] for jet in jets])

    return DyNetPass(collection, loss, given)


def main() -> None:
    serve(prepare)
