"""The Tree-GRU in DyNet, batched by DyNet itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.rivals import tree_dynet
from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.tree_dynet import Parameters, Tree, dy

TABLE = "embedding.weight"


def states(p: Parameters, tree: Tree) -> list[Any]:
    """Return h of each vertex."""
    affine, logistic, tanh, times = dy.affine_transform, dy.logistic, dy.tanh, dy.cmult
    h = list[Any]()
    for left, right, token in tree:
        if left < 0:
            z = logistic(affine([p["b_z"], p["W_z"], p[TABLE][token]]))
            n = tanh(affine([p["b_n"], p["W_n"], p[TABLE][token]]))
            h.append(n - times(z, n))
            continue
        parts = h[left], h[right]
        reset = [times(logistic(affine([p["b_r"], p["tree.U_r"], x])), x) for x in parts]
        before = parts[0] + parts[1]
        z = logistic(affine([p["b_z"], p["tree.U_z"], before]))
        n = tanh(affine([p["b_n"], p["tree.U_n"], reset[0] + reset[1]]))
        h.append(n + times(z, before - n))
    return h


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    own = {name: value for name, value in values.items() if name not in ("tree.W", "tree.b")}
    # A word has no parts to reset, so that its gate r is not needed.
    _, own["W_z"], own["W_n"] = np.split(values["tree.W"], 3, axis=1)
    own["b_r"], own["b_z"], own["b_n"] = np.split(values["tree.b"], 3)
    return tree_dynet.prepare(own, given, [TABLE], tree_dynet.vertex_loss(states))


def main() -> None:
    serve(prepare)
