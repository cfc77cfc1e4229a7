"""MV-RNN in DyNet, batched by DyNet itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.rivals import tree_dynet
from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.tree_dynet import Parameters, Tree, dy

TABLES = tuple(f"{name}.weight" for name in ("vector", "diagonal", "left", "right"))


def states(p: Parameters, tree: Tree) -> list[Any]:
    """Return the vector of each vertex."""
    vector, diagonal, left_factor, right_factor = (p[name] for name in TABLES)
    compose = p["tree.compose.bias"], p["tree.compose.weight"]
    size = compose[0].shape()[0]
    rank = left_factor[0].dim()[0][0] // size
    identity = dy.inputTensor(np.eye(size))
    h, matrices = list[Any](), list[Any]()
    for left, right, token in tree:
        if left < 0:
            u = dy.reshape(left_factor[token], (size, rank))
            v = dy.reshape(right_factor[token], (size, rank))
            matrices.append(dy.cmult(identity, diagonal[token]) + u * dy.transpose(v))
            h.append(vector[token])
        else:
            a, b = matrices[left], matrices[right]
            applied = dy.concatenate([b * h[left], a * h[right]])
            h.append(dy.tanh(dy.affine_transform([*compose, applied])))
            matrices.append(p["tree.W_M"] * dy.concatenate([a, b]))
    return h


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    own = {name: value for name, value in values.items() if name != "identity"}
    return tree_dynet.prepare(own, given, TABLES, tree_dynet.vertex_loss(states))


def main() -> None:
    serve(prepare)
