"""The nested RNN in DyNet, batched by DyNet itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.rivals import tree_dynet
from benchmarks.rivals.dynet_pass import lstm_arrays
from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.tree_dynet import Parameters, dy

TABLE = "embedding.weight"
CHAINS = ("chain.forth", "chain.back")


def lstm(p: Parameters, name: str, rows: list[Any]) -> list[Any]:
    """Return h of an LSTM at each row."""
    weights = [p[f"{name}.{key}"] for key in "WUb"]
    h = c = dy.zeros(weights[1].shape()[1])
    states = []
    for x in rows:
        gates = dy.vanilla_lstm_gates(x, h, *weights)
        c = dy.vanilla_lstm_c(c, gates)
        h = dy.vanilla_lstm_h(c, gates)
        states.append(h)
    return states


def loss(p: Parameters, batch: list[Any]) -> Any:
    """Return the mean cross entropy over sentences plus that over documents."""
    word = [p["tree.b"], p["tree.W"]]
    phrase = [dy.concatenate([p["tree.b"], p["tree.b_f"]]), p["tree.U"]]
    rows, labels, means, classes = list[Any](), list[int](), list[Any](), list[int]()
    for trees, document in batch:
        vertices = [tree_dynet.vertices(tree) for tree in trees]
        roots = [tree_dynet.tree_lstm(v, p[TABLE], word, phrase)[-1] for v in vertices]
        up, down = lstm(p, CHAINS[0], roots), lstm(p, CHAINS[1], roots[::-1])[::-1]
        own = [dy.concatenate(list(pair)) for pair in zip(up, down, strict=True)]
        rows += own
        labels += [tree[3][-1] for tree in trees]
        means.append(dy.average(own))
        classes.append(document)
    sentences = tree_dynet.mean_cross_entropy(p, "sentence", rows, labels)
    return sentences + tree_dynet.mean_cross_entropy(p, "document", means, classes)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    own = dict(values)
    for chain in CHAINS:
        own |= lstm_arrays(values, chain)
    return tree_dynet.prepare(own, given, [TABLE], loss)


def main() -> None:
    serve(prepare)
