"""MV-RNN in PyTorch, batched by hand: all words, then level by level.

The product of a matrix for each vertex with that of all vertices is one product of rows: matrices
are stored transposed, side by side for the two children. Roots have no matrix, as nothing reads it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rivals import tree_levels
from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.tree_levels import Levels, Parameters, Pool

TABLES = tuple(f"{name}.weight" for name in ("vector", "diagonal", "left", "right"))


def loss(p: Parameters, plan: Levels) -> Tensor:
    """Return the mean cross entropy over all vertices."""
    vector, diagonal, left, right = (p[name] for name in TABLES)
    size = vector.shape[1]
    # The transpose of U V + diag(a), once for each distinct word.
    u, v = left.view(len(left), -1, size), right.view(len(right), -1, size)
    matrix = torch.baddbmm(torch.diag_embed(diagonal), v.transpose(1, 2), u)
    word = F.embedding(plan.token, vector)
    states = [word]
    vectors = Pool(plan, word)
    inner_words = plan.token[plan.roots[0] :]
    matrices = Pool(plan, F.embedding(inner_words, matrix.view(len(matrix), -1)), True)
    for level in range(1, len(plan.splits)):
        h = vectors.children(level).view(-1, 2, size)
        m = matrices.children(level).view(-1, 2, size, size)
        # Row j of a transposed matrix times element j of the vector of the other child: A b, B a.
        other = h.flip(1).view(-1, 1, size)
        applied = torch.bmm(other, m.view(-1, size, size)).view(-1, 2, size)
        applied = applied.flip(1).view(-1, 2 * size)
        parent = torch.tanh(torch.addmm(p["tree.compose.bias"], applied, p["tree.compose.weight"]))
        states.append(parent)
        vectors.add(parent)
        rows = m[plan.roots[level] :].transpose(1, 2).reshape(-1, 2 * size)
        matrices.add(torch.mm(rows, p["tree.W_M"]).view(-1, size * size))
    logits = torch.addmm(p["output.bias"], torch.cat(states), p["output.weight"])
    return F.cross_entropy(logits, plan.label)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    return tree_levels.prepare(values, given, TABLES, loss)


def main() -> None:
    serve(prepare)
