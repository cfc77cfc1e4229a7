"""The two-typed Tree-LSTM in PyTorch, batched by hand: all words, then phrases level by level."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rivals import tree_levels
from benchmarks.rivals.gates import permute_gates
from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.tree_levels import Levels, Parameters, Pool

TABLE = "embedding.weight"
WORD, PHRASE = "tree.word", "tree.phrase"
# The gates i, o, u, f_left, f_right in another order: one slice for tanh, one for sigmoid.
ORDERS = {WORD: (2, 0, 1), PHRASE: (2, 0, 1, 3, 4)}


def loss(p: Parameters, plan: Levels) -> Tensor:
    """Return the mean cross entropy over all vertices; leaf states once per distinct word."""
    size = len(p["output.weight"])
    u, io = torch.addmm(p[f"{WORD}.bias"], p[TABLE], p[f"{WORD}.weight"]).split([size, 2 * size], 1)
    i, o = torch.sigmoid(io).split(size, 1)
    c = i * torch.tanh(u)
    h = o * torch.tanh(c)
    c, h = F.embedding(plan.token, c), F.embedding(plan.token, h)
    states, cells, hiddens = [h], Pool(plan, c), Pool(plan, h)
    for level in range(1, len(plan.splits)):
        c_left, c_right = cells.children(level).view(-1, 2, size).unbind(1)
        below = hiddens.children(level).view(-1, 2 * size)
        gates = torch.addmm(p[f"{PHRASE}.bias"], below, p[f"{PHRASE}.weight"])
        u, rest = gates.split([size, 4 * size], 1)
        i, o, f_left, f_right = torch.sigmoid(rest).split(size, 1)
        c = torch.addcmul(torch.addcmul(i * torch.tanh(u), f_left, c_left), f_right, c_right)
        h = o * torch.tanh(c)
        states.append(h)
        cells.add(c)
        hiddens.add(h)
    logits = torch.addmm(p["output.bias"], torch.cat(states), p["output.weight"])
    return F.cross_entropy(logits, plan.label)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    own = dict(values)
    for layer, order in ORDERS.items():
        for name in (f"{layer}.weight", f"{layer}.bias"):
            own[name] = permute_gates(own[name], order)
    own[f"{PHRASE}.bias"][-2 * len(values["output.weight"]) :] += 1.0  # of forget gates
    return tree_levels.prepare(own, given, [TABLE], loss)


def main() -> None:
    serve(prepare)
