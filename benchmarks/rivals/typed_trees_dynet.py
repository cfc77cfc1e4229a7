"""The two-typed Tree-LSTM in DyNet, batched by DyNet itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.rivals import tree_dynet
from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.tree_dynet import Parameters, Tree

TABLE = "embedding.weight"
WORD, PHRASE = "tree.word", "tree.phrase"


def states(p: Parameters, tree: Tree) -> list[Any]:
    """Return h of each vertex."""
    word, phrase = ([p[f"{name}.bias"], p[f"{name}.weight"]] for name in (WORD, PHRASE))
    return tree_dynet.tree_lstm(tree, p[TABLE], word, phrase)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    own = dict(values)
    own[f"{PHRASE}.bias"] = values[f"{PHRASE}.bias"].copy()
    own[f"{PHRASE}.bias"][-2 * len(values["output.weight"]) :] += 1.0  # forget gates
    return tree_dynet.prepare(own, given, [TABLE], tree_dynet.vertex_loss(states))


def main() -> None:
    serve(prepare)
