"""Binary Tree-LSTM batched by hand, with the backward pass by hand and buffers kept.

Parameter gradients are one product each over the whole batch; a level costs two row gathers, one
product and the pointwise part, forward and backward; nothing is allocated in steady state.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.rivals import cells, fused_cells
from benchmarks.rivals.base import TorchRunner
from benchmarks.rivals.buffers import Buffers
from benchmarks.rivals.loss import cross_entropy_backward
from benchmarks.rivals.tree_plan import TreePlan, plan_trees
from benchmarks.samples import Sample


@dataclass(frozen=True)
class ManualPlan:
    rows: TreePlan
    unique: Tensor
    token: Tensor  # leaf -> index in `unique`
    leaf_token: Tensor
    levels: list[tuple[int, int]]  # rows of each level
    child: Tensor  # [2 * inner]
    up: Tensor  # [rows]
    label: Tensor
    labelled: int


class ManualTreeLSTM(TorchRunner):
    """The order of gates is u, i, o, f_l, f_r."""

    gate_order: ClassVar = {"W": (2, 0, 1), "U": (2, 0, 1, 3, 4), "b": (2, 0, 1, 3, 4)}
    autograd = False
    leaf_forward: Callable[..., None] = staticmethod(cells.leaf_forward)
    leaf_backward: Callable[..., None] = staticmethod(cells.leaf_backward)
    inner_forward: Callable[..., None] = staticmethod(cells.inner_forward)
    inner_backward: Callable[..., None] = staticmethod(cells.inner_backward)

    def parameters_loaded(self) -> None:
        self.buffers = Buffers(self.device)
        self.grads = {n: torch.zeros_like(p) for n, p in self.p.items() if n != "embedding"}

    def prepare(self, samples: SequenceOf[Sample]) -> ManualPlan:
        rows = plan_trees(samples)
        unique, token = np.unique(rows.leaf_token, return_inverse=True)
        bounds = rows.level_rows.tolist()
        plan = ManualPlan(
            rows,
            torch.from_numpy(unique),
            torch.from_numpy(token),
            torch.from_numpy(rows.leaf_token),
            list(pairwise(bounds)),
            torch.from_numpy(rows.child.ravel()),
            torch.from_numpy(rows.up),
            torch.from_numpy(rows.label),
            max(int((rows.label >= 0).sum()), 1),
        )
        return self.placed(plan)  # type: ignore[no-any-return]

    def forward(self, plan: ManualPlan) -> Tensor:
        """Return logits of all rows; the buffers keep the values that backward reads."""
        p, take, n = self.p, self.buffers.take, self.sizes.hidden
        rows, leaves = plan.rows.rows, plan.rows.leaves
        inner = rows - leaves
        c, t, h = (take(name, rows, n) for name in ("c", "t", "h"))
        x = take("x", leaves, self.sizes.embedding)
        torch.index_select(p["embedding"], 0, plan.leaf_token, out=x)
        gates = take("leaf_gates", leaves, 3 * n)
        torch.addmm(p["b"][: 3 * n], x, p["W"], out=gates)
        self.leaf_forward(gates, c[:leaves], t[:leaves], h[:leaves])

        all_gates = take("gates", inner, 5 * n)
        children_c = take("children_c", 2 * inner, n)
        children_h = take("children_h", 2 * inner, n)
        for begin, end in plan.levels[1:]:
            first, last = begin - leaves, end - leaves
            child = plan.child[2 * first : 2 * last]
            below_c, below_h = children_c[2 * first : 2 * last], children_h[2 * first : 2 * last]
            torch.index_select(c, 0, child, out=below_c)
            torch.index_select(h, 0, child, out=below_h)
            gates = all_gates[first:last]
            torch.addmm(p["b"], below_h.view(-1, 2 * n), p["U"], out=gates)
            self.inner_forward(
                gates, below_c.view(-1, 2, n), c[begin:end], t[begin:end], h[begin:end]
            )
        logits = take("logits", rows, self.sizes.classes)
        return torch.addmm(p["b_out"], h, p["W_out"], out=logits)

    def backward(self, plan: ManualPlan, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss and gradient of the unique embedding rows; others go to ``self.grads``."""
        p, g, take, n = self.p, self.grads, self.buffers.take, self.sizes.hidden
        rows, leaves = plan.rows.rows, plan.rows.leaves
        inner = rows - leaves
        t, h, all_gates = take("t", rows, n), take("h", rows, n), take("gates", inner, 5 * n)
        children_c = take("children_c", 2 * inner, n)
        children_h = take("children_h", 2 * inner, n)

        loss, d_logits = cross_entropy_backward(logits, plan.label, plan.labelled)
        torch.mm(h.t(), d_logits, out=g["W_out"])
        torch.sum(d_logits, 0, out=g["b_out"])
        dh_out = take("dh_out", rows, n)
        torch.mm(d_logits, p["W_out"].t(), out=dh_out)

        # One row per edge, written by the parent and read by the child; the last stays zero.
        edge_dh, edge_dc = take("edge_dh", 2 * inner + 1, n), take("edge_dc", 2 * inner + 1, n)
        edge_dh[-1].zero_()
        edge_dc[-1].zero_()
        widest = max(end - begin for begin, end in plan.levels)
        dh_buffer, dc_buffer = take("dh", widest, n), take("dc", widest, n)
        for begin, end in reversed(plan.levels):
            up = plan.up[begin:end]
            dh, dc = dh_buffer[: end - begin], dc_buffer[: end - begin]
            torch.index_select(edge_dh, 0, up, out=dh)
            torch.index_select(edge_dc, 0, up, out=dc)
            dh.add_(dh_out[begin:end])
            if begin == 0:
                gates = take("leaf_gates", leaves, 3 * n)
                self.leaf_backward(gates, t[:leaves], dh, dc)
                continue
            first, last = begin - leaves, end - leaves
            gates = all_gates[first:last]
            edges = slice(2 * first, 2 * last)
            self.inner_backward(
                gates,
                children_c[edges].view(-1, 2, n),
                t[begin:end],
                dh,
                dc,
                edge_dc[edges].view(-1, 2, n),
            )
            torch.mm(gates, p["U"].t(), out=edge_dh[edges].view(-1, 2 * n))

        torch.mm(children_h.view(-1, 2 * n).t(), all_gates, out=g["U"])
        torch.sum(all_gates, 0, out=g["b"])
        g["b"][: 3 * n] += gates.sum(0)
        x = take("x", leaves, self.sizes.embedding)
        torch.mm(x.t(), gates, out=g["W"])
        dx = take("dx", leaves, self.sizes.embedding)
        torch.mm(gates, p["W"].t(), out=dx)
        return loss, self.rows_gradient(dx, plan.token, len(plan.unique))

    @torch.no_grad()
    def compute_gradients(self, plan: ManualPlan) -> tuple[Tensor, Tensor]:
        loss, rows_grad = self.backward(plan, self.forward(plan))
        for name, grad in self.grads.items():
            self.p[name].grad = grad
        return loss, rows_grad

    @torch.inference_mode()
    def infer(self, plan: ManualPlan) -> Tensor:
        return self.forward(plan)

    def logits(self, plan: ManualPlan) -> npt.NDArray[np.float32]:
        rows = self.infer(plan).cpu().numpy()
        result, label = np.empty_like(rows), np.empty_like(plan.rows.label)
        result[plan.rows.vertex] = rows
        label[plan.rows.vertex] = plan.rows.label
        return result[label >= 0]


class ManualTreeLSTMCompiled(fused_cells.Compiled, ManualTreeLSTM):
    """The pointwise parts fused by torch.compile."""

    leaf_forward = staticmethod(fused_cells.compiled(fused_cells.leaf_forward))
    leaf_backward = staticmethod(fused_cells.compiled(fused_cells.leaf_backward))
    inner_forward = staticmethod(fused_cells.compiled(fused_cells.inner_forward))
    inner_backward = staticmethod(fused_cells.compiled(fused_cells.inner_backward))
