"""Trees of the treebank in PyTorch, level by level: what the programs for models of trees share.

All equal vertices of a level run at once, in the order of `hand_tree`: each state is copied once,
by a concatenation of exactly the rows that the next level reads, and permuted into (left, right)
order by an embedding lookup, whose backward is the cheapest row scatter of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rivals.hand_tree import HandPlan, hand_plan
from benchmarks.rivals.program import Given, Values
from benchmarks.samples import Tree

Parameters = dict[str, Tensor]
# The loss of a batch: of the parameters, and of the rows of each table that the batch reads.
Loss = Callable[[Parameters, Any], Tensor]


def trees(batch: Sequence[Any]) -> list[Tree]:
    """Return trees given as JSON values: left, right, token and label of each vertex."""
    found = []
    for columns in batch:
        left, right, token, label = (np.array(column, np.int32) for column in columns)
        height = np.zeros(len(left), np.int32)
        for v in np.flatnonzero(left >= 0):
            height[v] = 1 + max(height[left[v]], height[right[v]])
        found.append(Tree(left, right, token, label, height))
    return found


def levels(batch: Sequence[Any]) -> HandPlan:
    """Return the plan of a batch of trees given as JSON values."""
    return hand_plan(trees(batch))


def roots(plan: HandPlan) -> list[int]:
    """Return the number of roots of each level, which are its first rows."""
    found: list[int] = plan.rows.consumed[:, 0].tolist()
    return found


class Pool:
    """The rows of one state, of which each level gathers those of its children.

    without_roots: the state has no rows of roots, which no vertex reads.
    """

    def __init__(self, plan: HandPlan, leaves: Tensor, without_roots: bool = False) -> None:
        self.plan, self.chunks = plan, list[Any]()
        self.left_out = roots(plan) if without_roots else [0] * len(plan.splits)
        self.add(leaves)

    def add(self, rows: Tensor) -> None:
        """Add the rows of the next level."""
        level = len(self.chunks)
        sizes = list(self.plan.splits[level])
        sizes[0] -= self.left_out[level]
        self.chunks.append(rows.split(sizes))

    def children(self, level: int) -> Tensor:
        """Return rows [2 * vertices of an inner level, width]: left, right, left, ..."""
        read = [self.chunks[j][chunk] for j, chunk in self.plan.pieces[level]]
        rows = torch.cat(read) if len(read) > 1 else read[0]
        return F.embedding(self.plan.lookup[level - 1], rows)


def tree_lstm(
    rows: Tensor, word: tuple[Tensor, Tensor], phrase: tuple[Tensor, Tensor], plan: HandPlan
) -> list[Tensor]:
    """Return h of each level of a binary Tree-LSTM; that of a word once for each distinct one.

    rows: of the embedding. word, phrase: bias and weight, whose gates are u, i, o, f_left, f_right:
    one slice for tanh and one for sigmoid.
    """
    size = word[1].shape[1] // 3
    u, io = torch.addmm(word[0], rows, word[1]).split([size, 2 * size], 1)
    i, o = torch.sigmoid(io).split(size, 1)
    c = i * torch.tanh(u)
    h = o * torch.tanh(c)
    c, h = F.embedding(plan.token, c), F.embedding(plan.token, h)
    states, cells, hiddens = [h], Pool(plan, c), Pool(plan, h)
    for level in range(1, len(plan.splits)):
        c_left, c_right = cells.children(level).view(-1, 2, size).unbind(1)
        below = hiddens.children(level).view(-1, 2 * size)
        u, rest = torch.addmm(phrase[0], below, phrase[1]).split([size, 4 * size], 1)
        i, o, f_left, f_right = torch.sigmoid(rest).split(size, 1)
        c = torch.addcmul(torch.addcmul(i * torch.tanh(u), f_left, c_left), f_right, c_right)
        h = o * torch.tanh(c)
        states.append(h)
        cells.add(c)
        hiddens.add(h)
    return states


def prepare(
    values: Values,
    given: Given,
    tables: Sequence[str],
    loss: Loss,
    plan: Callable[[Sequence[Any]], Any] = levels,
) -> Callable[[], float]:
    """Return a pass over all batches, which trains by SGD or computes the losses.

    tables: parameters of which a step updates only the rows ``plan.unique``.
    """
    torch.set_num_threads(given["threads"])
    training = bool(given["training"])
    plans = [plan(batch) for batch in given["batches"]]
    p = {name: torch.from_numpy(value) for name, value in values.items()}
    dense = {name: tensor for name, tensor in p.items() if name not in tables}
    for tensor in dense.values():
        tensor.requires_grad_(training)
    optimizer = torch.optim.SGD(list(dense.values()), lr=given["lr"], fused=True)

    def step(batch: Any) -> Tensor:
        rows = {name: p[name].index_select(0, batch.unique) for name in tables}
        for tensor in rows.values():
            tensor.requires_grad_(training)
        found = loss({**dense, **rows}, batch)
        if training:
            found.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for name, tensor in rows.items():
                    p[name].index_add_(0, batch.unique, tensor.grad, alpha=-given["lr"])
        return found

    def run() -> float:
        with torch.inference_mode(not training):
            return [step(batch) for batch in plans][-1].item()

    return run
