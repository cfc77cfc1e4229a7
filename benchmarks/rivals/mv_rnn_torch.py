"""MV-RNN in PyTorch, batched by hand: all words, then level by level.

Matrices are stored transposed: the product of that of all vertices with one of each vertex is then
a product of rows. Left children come before right ones, so that neither is copied for a product.
Roots have no matrix, as nothing reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rivals import tree_levels
from benchmarks.rivals.hand_tree import HandPlan
from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.tree_levels import Parameters, Pool

TABLES = tuple(f"{name}.weight" for name in ("vector", "diagonal", "left", "right"))


def plan(batch: Sequence[Any]) -> HandPlan:
    """Return a batch of trees, whose levels read all left children, then all right ones."""
    levels = tree_levels.levels(batch)
    lookup = [rows.view(-1, 2).T.flatten() for rows in levels.lookup]
    return replace(levels, lookup=lookup)


def loss(p: Parameters, batch: HandPlan) -> Tensor:
    """Return the mean cross entropy over all vertices."""
    vector, diagonal, left, right = (p[name] for name in TABLES)
    size = vector.shape[1]
    # The transpose of U V + diag(a), once for each distinct word.
    u, v = left.view(len(left), -1, size), right.view(len(right), -1, size)
    matrix = torch.baddbmm(torch.diag_embed(diagonal), v.transpose(1, 2), u)
    word = F.embedding(batch.token, vector)
    states = [word]
    vectors = Pool(batch, word)
    roots = tree_levels.roots(batch)
    inner_words = batch.token[roots[0] :]
    matrices = Pool(batch, F.embedding(inner_words, matrix.view(len(matrix), -1)), True)
    of_left, of_right = p["tree.W_M"].split(size)
    for level in range(1, len(batch.splits)):
        h, m = vectors.children(level), matrices.children(level)
        n, skip = len(h) // 2, roots[level]
        # Row j of a transposed matrix times element j of the vector of the other child: A b, B a.
        other = torch.cat([h[n:], h[:n]]).unsqueeze(1)
        applied = torch.bmm(other, m.view(-1, size, size)).squeeze(1)
        applied = torch.cat([applied[n:], applied[:n]], 1)
        parent = torch.tanh(torch.addmm(p["tree.compose.bias"], applied, p["tree.compose.weight"]))
        states.append(parent)
        vectors.add(parent)
        left, right = m[skip:n].view(-1, size), m[n + skip :].view(-1, size)
        rows = torch.addmm(torch.mm(left, of_left), right, of_right)
        matrices.add(rows.view(-1, size * size))
    logits = torch.addmm(p["output.bias"], torch.cat(states), p["output.weight"])
    return F.cross_entropy(logits, batch.label)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    return tree_levels.prepare(values, given, TABLES, loss, plan)


def main() -> None:
    serve(prepare)
