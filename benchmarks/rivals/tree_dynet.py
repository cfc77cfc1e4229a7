"""Trees of the treebank in DyNet: what the programs for models of trees share.

Each step builds the expressions of one vertex at a time, which DyNet batches itself. An output
layer and its loss run once over all their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.rivals import dynet_pass
from benchmarks.rivals.dynet_pass import DyNetPass, dy, parameters
from benchmarks.rivals.program import Given, Values

__all__ = ["dy", "mean_cross_entropy", "prepare", "tree_lstm", "vertex_loss", "vertices"]

Tree = list[tuple[int, int, int]]  # left child, right child and token of each vertex
# Left children, right children, tokens and labels of a tree, as `cavs` gives them.
Columns = list[list[int]]
Parameters = dict[str, Any]


def vertices(tree: Columns) -> Tree:
    """Return the vertices of a tree."""
    return list(zip(*tree[:3], strict=True))


def tree_lstm(tree: Tree, table: Any, word: list[Any], phrase: list[Any]) -> list[Any]:
    """Return h of each vertex of a binary Tree-LSTM.

    word, phrase: bias and weight, whose gates are i, o, u, f_left, f_right.
    """
    part, logistic, tanh, times = dy.pick_range, dy.logistic, dy.tanh, dy.cmult
    h, c = list[Any](), list[Any]()
    for left, right, token in tree:
        if left < 0:
            gates = dy.affine_transform([*word, table[token]])
        else:
            gates = dy.affine_transform([*phrase, dy.concatenate([h[left], h[right]])])
        n = gates.dim()[0][0] // (3 if left < 0 else 5)
        i, o = logistic(part(gates, 0, n)), logistic(part(gates, n, 2 * n))
        cell = times(i, tanh(part(gates, 2 * n, 3 * n)))
        if left >= 0:
            f_left = logistic(part(gates, 3 * n, 4 * n))
            f_right = logistic(part(gates, 4 * n, 5 * n))
            cell = dy.esum([cell, times(f_left, c[left]), times(f_right, c[right])])
        c.append(cell)
        h.append(times(o, tanh(cell)))
    return h


def mean_cross_entropy(p: Parameters, layer: str, rows: list[Any], labels: list[int]) -> Any:
    """Return the loss of an output layer over rows, which runs once over all of them."""
    x = dy.concatenate_to_batch(rows)
    logits = dy.affine_transform([p[f"{layer}.bias"], p[f"{layer}.weight"], x])
    return dynet_pass.mean_cross_entropy(logits, labels)


def vertex_loss(states: Callable[[Parameters, Tree], list[Any]]) -> Callable[..., Any]:
    """Return the loss over all vertices of a batch of trees. states: the vectors of a tree."""

    def loss(p: Parameters, batch: list[Columns]) -> Any:
        rows = [h for tree in batch for h in states(p, vertices(tree))]
        return mean_cross_entropy(p, "output", rows, [x for tree in batch for x in tree[3]])

    return loss


def prepare(
    values: Values, given: Given, tables: Sequence[str], loss: Callable[..., Any]
) -> Callable[[], float]:
    """Return a pass over all batches, which trains by SGD or computes the losses.

    tables: parameters that are looked up. loss: of parameters and a batch.
    """
    collection, p = parameters(values, tables)
    return DyNetPass(collection, lambda batch: loss(p, batch), given)
