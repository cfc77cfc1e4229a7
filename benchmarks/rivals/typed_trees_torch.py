"""The two-typed Tree-LSTM in PyTorch, batched by hand: all words, then phrases level by level."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rivals import tree_levels
from benchmarks.rivals.gates import permute_gates
from benchmarks.rivals.hand_tree import HandPlan
from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.tree_levels import Parameters

TABLE = "embedding.weight"
WORD, PHRASE = "tree.word", "tree.phrase"
ORDERS = {WORD: (2, 0, 1), PHRASE: (2, 0, 1, 3, 4)}  # from i, o, u, f_left, f_right


def loss(p: Parameters, plan: HandPlan) -> Tensor:
    """Return the mean cross entropy over all vertices."""
    word, phrase = ((p[f"{name}.bias"], p[f"{name}.weight"]) for name in (WORD, PHRASE))
    states = tree_levels.tree_lstm(p[TABLE], word, phrase, plan)
    logits = torch.addmm(p["output.bias"], torch.cat(states), p["output.weight"])
    return F.cross_entropy(logits, plan.label)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    own = dict(values)
    for layer, order in ORDERS.items():
        for name in (f"{layer}.weight", f"{layer}.bias"):
            own[name] = permute_gates(own[name], order)
    own[f"{PHRASE}.bias"][-2 * len(values["output.weight"]) :] += 1.0  # forget gates
    return tree_levels.prepare(own, given, [TABLE], loss)


def main() -> None:
    serve(prepare)
