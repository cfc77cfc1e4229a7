"""Binary Tree-LSTM batched by hand, level by level, with autograd.

The program of a good engineer: leaves separately, once; one product per level for all gates; each
state copied once, by a concatenation of exactly the rows that the next level reads, and permuted
into (left, right) order by an embedding lookup, whose backward is the cheapest row scatter of
PyTorch; output layer and loss once over all vertices; embedding rows unique, updated sparsely.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rivals.base import TorchRunner
from benchmarks.rivals.device import autocast
from benchmarks.rivals.tree_plan import TreePlan, plan_trees
from benchmarks.samples import Sample


@dataclass(frozen=True)
class HandPlan:
    rows: TreePlan
    unique: Tensor  # distinct tokens
    token: Tensor  # leaf -> index in `unique`
    splits: list[list[int]]  # per level: sizes of the chunks that later levels read
    pieces: list[list[tuple[int, int]]]  # per inner level: the (level, chunk) pairs that it reads
    lookup: list[Tensor]  # per inner level: pool rows as left, right, left, ...
    label: Tensor


def hand_plan(samples: SequenceOf[Sample]) -> HandPlan:
    """Return the part of a batch that depends on structure and tokens alone."""
    rows = plan_trees(samples)
    unique, token = np.unique(rows.leaf_token, return_inverse=True)
    levels = len(rows.level_rows) - 1
    splits: list[list[int]] = []
    pieces: list[list[tuple[int, int]]] = [[] for _ in range(levels)]
    for level in range(levels):
        targets = np.flatnonzero(rows.consumed[level])
        splits.append(rows.consumed[level, targets].tolist())
        for chunk, target in enumerate(targets.tolist()):
            if target:
                pieces[target].append((level, chunk))
    place = torch.from_numpy(rows.pool_position[rows.child].ravel())
    inner = 2 * (rows.level_rows[2:] - rows.level_rows[1:-1])
    return HandPlan(
        rows,
        torch.from_numpy(unique),
        torch.from_numpy(token),
        splits,
        pieces,
        list(place.split(inner.tolist())),
        torch.from_numpy(rows.label),
    )


class HandTreeLSTM(TorchRunner):
    """The order of gates is u, i, o, f_l, f_r: one tanh slice, one sigmoid slice, one bias."""

    gate_order: ClassVar = {"W": (2, 0, 1), "U": (2, 0, 1, 3, 4), "b": (2, 0, 1, 3, 4)}
    leaf_states_by_token = False

    def prepare(self, samples: SequenceOf[Sample]) -> HandPlan:
        return self.placed(hand_plan(samples))  # type: ignore[no-any-return]

    def forward(self, plan: HandPlan, embedding_rows: Tensor) -> Tensor:
        """Return logits of all rows [rows, classes]."""
        h_size = self.sizes.hidden
        p = self.p
        x = embedding_rows
        if not self.leaf_states_by_token:
            x = self.rows_of(x, plan.token)
        gates = torch.addmm(p["b"][: 3 * h_size], x, p["W"])
        u, io = gates.split([h_size, 2 * h_size], 1)
        i, o = torch.sigmoid(io).split(h_size, 1)
        c = i * torch.tanh(u)
        h = o * torch.tanh(c)
        if self.leaf_states_by_token:
            c, h = self.rows_of(c, plan.token), self.rows_of(h, plan.token)

        states = [h]
        c_chunks, h_chunks = [c.split(plan.splits[0])], [h.split(plan.splits[0])]
        for level, lookup in enumerate(plan.lookup, start=1):
            pieces = plan.pieces[level]
            c_pool = torch.cat([c_chunks[j][chunk] for j, chunk in pieces])
            h_pool = torch.cat([h_chunks[j][chunk] for j, chunk in pieces])
            children_c = self.rows_of(c_pool, lookup).view(-1, 2, h_size)
            children_h = self.rows_of(h_pool, lookup).view(-1, 2 * h_size)
            gates = torch.addmm(p["b"], children_h, p["U"])
            u, rest = gates.split([h_size, 4 * h_size], 1)
            i, o, f_l, f_r = torch.sigmoid(rest).split(h_size, 1)
            c_l, c_r = children_c.unbind(1)
            c = torch.addcmul(torch.addcmul(i * torch.tanh(u), f_l, c_l), f_r, c_r)
            h = o * torch.tanh(c)
            states.append(h)
            c_chunks.append(c.split(plan.splits[level]))
            h_chunks.append(h.split(plan.splits[level]))
        return torch.addmm(p["b_out"], torch.cat(states), p["W_out"])

    def compute_gradients(self, plan: HandPlan) -> tuple[Tensor, Tensor]:
        self.clear_gradients()
        rows = self.p["embedding"].index_select(0, plan.unique).requires_grad_()
        with autocast(self.case):
            loss = F.cross_entropy(self.forward(plan, rows), plan.label, ignore_index=-1)
        loss.backward()
        assert rows.grad is not None
        return loss.detach(), rows.grad

    @torch.inference_mode()
    def infer(self, plan: HandPlan) -> Tensor:
        with autocast(self.case):
            return self.forward(plan, self.p["embedding"].index_select(0, plan.unique))

    def logits(self, plan: HandPlan) -> npt.NDArray[np.float32]:
        rows = self.infer(plan).float().cpu().numpy()
        result = np.empty_like(rows)
        result[plan.rows.vertex] = rows
        label = np.empty_like(plan.rows.label)
        label[plan.rows.vertex] = plan.rows.label
        return result[label >= 0]


class HandTreeLSTMUnique(HandTreeLSTM):
    """Leaf states are computed once for each distinct token of the batch, not for each leaf."""

    leaf_states_by_token = True
