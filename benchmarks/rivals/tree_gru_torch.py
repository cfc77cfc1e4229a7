"""The Tree-GRU in PyTorch, batched by hand: all words, then phrases level by level."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rivals import tree_levels
from benchmarks.rivals.hand_tree import HandPlan
from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.tree_levels import Parameters, Pool

TABLE = "embedding.weight"


def loss(p: Parameters, plan: HandPlan) -> Tensor:
    """Return the mean cross entropy over all vertices; h of a word once for each distinct one."""
    U_r, U_z, U_n = (p[f"tree.{name}"] for name in ("U_r", "U_z", "U_n"))
    size = len(U_r)
    b_r, b_z, b_n = p["tree.b"].split(size)
    # A word has no parts to reset, so that the gate r is not needed.
    z, n = torch.addmm(p["tree.b"][size:], p[TABLE], p["tree.W"][:, size:]).split(size, 1)
    h = F.embedding(plan.token, torch.sigmoid(-z) * torch.tanh(n))
    states, pool = [h], Pool(plan, h)
    for level in range(1, len(plan.splits)):
        children = pool.children(level)
        r = torch.sigmoid(torch.addmm(b_r, children, U_r))
        before = children.view(-1, 2, size).sum(1)
        z = torch.sigmoid(torch.addmm(b_z, before, U_z))
        n = torch.tanh(torch.addmm(b_n, (r * children).view(-1, 2, size).sum(1), U_n))
        h = torch.lerp(n, before, z)
        states.append(h)
        pool.add(h)
    logits = torch.addmm(p["output.bias"], torch.cat(states), p["output.weight"])
    return F.cross_entropy(logits, plan.label)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    return tree_levels.prepare(values, given, [TABLE], loss)


def main() -> None:
    serve(prepare)
