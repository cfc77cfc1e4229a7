"""Tree-FC on complete trees of one size, batched by hand, level by level.

The rows of a level stand tree by tree, so the children of row i are rows 2 i and 2 i + 1 of the
level below: seen as [rows / 2, 2 h] they are the product's operand, and nothing is ever gathered.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rivals.base import TorchRunner
from benchmarks.rivals.buffers import Buffers
from benchmarks.rivals.loss import cross_entropy_backward
from benchmarks.samples import Sample, Tree


@dataclass(frozen=True)
class CompletePlan:
    unique: Tensor
    token: Tensor  # leaf -> index in `unique`
    leaf_token: Tensor
    levels: list[int]  # rows of each level; 0: leaves
    label: Tensor  # one per root


def complete_plan(samples: SequenceOf[Sample]) -> CompletePlan:
    trees = [sample for sample in samples if isinstance(sample, Tree)]
    leaves = (len(trees[0]) + 1) // 2
    if any(len(tree) != 2 * leaves - 1 for tree in trees) or leaves & (leaves - 1):
        raise ValueError("the trees must be complete and of one size")
    token = np.concatenate([tree.token[:leaves] for tree in trees]).astype(np.int64)
    unique, place = np.unique(token, return_inverse=True)
    rows = len(trees) * leaves
    levels = [rows >> level for level in range(leaves.bit_length())]
    label = np.array([tree.label[-1] for tree in trees], np.int64)
    return CompletePlan(
        torch.from_numpy(unique),
        torch.from_numpy(place),
        torch.from_numpy(token),
        levels,
        torch.from_numpy(label),
    )


class HandTreeFC(TorchRunner):
    """With autograd."""

    def prepare(self, samples: SequenceOf[Sample]) -> CompletePlan:
        return self.placed(complete_plan(samples))  # type: ignore[no-any-return]

    def forward(self, plan: CompletePlan, embedding_rows: Tensor) -> Tensor:
        h = torch.tanh(self.rows_of(embedding_rows, plan.token) + self.p["b"])
        for rows in plan.levels[1:]:
            h = torch.tanh(torch.addmm(self.p["b"], h.view(rows, -1), self.p["W"]))
        return torch.addmm(self.p["b_out"], h, self.p["W_out"])

    def compute_gradients(self, plan: CompletePlan) -> tuple[Tensor, Tensor]:
        self.clear_gradients()
        rows = self.p["embedding"].index_select(0, plan.unique).requires_grad_()
        loss = F.cross_entropy(self.forward(plan, rows), plan.label)
        loss.backward()
        assert rows.grad is not None
        return loss.detach(), rows.grad

    @torch.inference_mode()
    def infer(self, plan: CompletePlan) -> Tensor:
        return self.forward(plan, self.p["embedding"].index_select(0, plan.unique))

    def logits(self, plan: CompletePlan) -> npt.NDArray[np.float32]:
        return self.infer(plan).cpu().numpy()


class ManualTreeFC(TorchRunner):
    """With the backward pass by hand and reused buffers: one product for the gradient of W."""

    autograd = False

    def parameters_loaded(self) -> None:
        self.buffers = Buffers(self.device)
        for name, parameter in self.p.items():
            if name != "embedding":
                parameter.grad = torch.zeros_like(parameter)

    def prepare(self, samples: SequenceOf[Sample]) -> CompletePlan:
        return self.placed(complete_plan(samples))  # type: ignore[no-any-return]

    def forward(self, plan: CompletePlan) -> Tensor:
        p, n = self.p, self.sizes.hidden
        h = self.buffers.take("h", sum(plan.levels), n)
        torch.index_select(p["embedding"], 0, plan.leaf_token, out=h[: plan.levels[0]])
        h[: plan.levels[0]].add_(p["b"]).tanh_()
        begin = 0
        for below, rows in zip(plan.levels[:-1], plan.levels[1:], strict=True):
            end = begin + below
            out = h[end : end + rows]
            torch.addmm(p["b"], h[begin:end].view(rows, -1), p["W"], out=out)
            out.tanh_()
            begin = end
        return torch.addmm(p["b_out"], h[begin:], p["W_out"])

    def backward(self, plan: CompletePlan, logits: Tensor) -> tuple[Tensor, Tensor]:
        p, n = self.p, self.sizes.hidden
        g = {name: parameter.grad for name, parameter in p.items()}
        loss, d_logits = cross_entropy_backward(logits, plan.label, len(plan.label))
        rows, roots, leaves = sum(plan.levels), plan.levels[-1], plan.levels[0]
        h, dh = self.buffers.take("h", rows, n), self.buffers.take("dh", rows, n)
        torch.mm(h[rows - roots :].t(), d_logits, out=g["W_out"])
        torch.sum(d_logits, 0, out=g["b_out"])
        torch.mm(d_logits, p["W_out"].t(), out=dh[rows - roots :])
        end = rows
        for count, below in zip(plan.levels[:0:-1], plan.levels[-2::-1], strict=True):
            begin = end - count
            gate = dh[begin:end]
            torch.ops.aten.tanh_backward.grad_input(gate, h[begin:end], grad_input=gate)
            torch.mm(gate, p["W"].t(), out=dh[begin - below : begin].view(count, -1))
            end = begin
        gate = dh[:leaves]
        torch.ops.aten.tanh_backward.grad_input(gate, h[:leaves], grad_input=gate)
        torch.mm(h[: rows - roots].view(rows - leaves, -1).t(), dh[leaves:], out=g["W"])
        torch.sum(dh, 0, out=g["b"])
        grad = self.rows_gradient(dh[:leaves], plan.token, len(plan.unique))
        return loss, grad

    @torch.no_grad()
    def compute_gradients(self, plan: CompletePlan) -> tuple[Tensor, Tensor]:
        return self.backward(plan, self.forward(plan))

    @torch.inference_mode()
    def infer(self, plan: CompletePlan) -> Tensor:
        return self.forward(plan)

    def logits(self, plan: CompletePlan) -> npt.NDArray[np.float32]:
        return self.infer(plan).cpu().numpy()
