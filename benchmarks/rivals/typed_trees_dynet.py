"""The two-typed Tree-LSTM in DyNet, batched by DyNet itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.rivals import tree_dynet
from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.tree_dynet import dy

TABLE = "embedding.weight"
WORD, PHRASE = "tree.word", "tree.phrase"


def states(p: dict[str, Any], tree: list[tuple[int, int, int]]) -> list[Any]:
    """Return h of each vertex."""
    word = p[f"{WORD}.bias"], p[f"{WORD}.weight"]
    phrase = p[f"{PHRASE}.bias"], p[f"{PHRASE}.weight"]
    n = word[0].shape()[0] // 3
    part, logistic, tanh, times = dy.pick_range, dy.logistic, dy.tanh, dy.cmult
    h, c = list[Any](), list[Any]()
    for left, right, token in tree:
        if left < 0:
            gates = dy.affine_transform([*word, p[TABLE][token]])
        else:
            gates = dy.affine_transform([*phrase, dy.concatenate([h[left], h[right]])])
        i, o = logistic(part(gates, 0, n)), logistic(part(gates, n, 2 * n))
        cell = times(i, tanh(part(gates, 2 * n, 3 * n)))
        if left >= 0:
            f_left = logistic(part(gates, 3 * n, 4 * n))
            f_right = logistic(part(gates, 4 * n, 5 * n))
            cell = dy.esum([cell, times(f_left, c[left]), times(f_right, c[right])])
        c.append(cell)
        h.append(times(o, tanh(cell)))
    return h


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    own = dict(values)
    n = len(values["output.weight"])
    own[f"{PHRASE}.bias"] = values[f"{PHRASE}.bias"].copy()
    own[f"{PHRASE}.bias"][3 * n :] += 1.0  # of forget gates
    return tree_dynet.prepare(own, given, [TABLE], states)


def main() -> None:
    serve(prepare)
