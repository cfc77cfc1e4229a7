"""LSTM batched by hand with the backward pass by hand, buffers kept, one product for each dW."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.rivals import cells, fused_cells
from benchmarks.rivals.base import TorchRunner
from benchmarks.rivals.buffers import Buffers
from benchmarks.rivals.loss import cross_entropy_backward
from benchmarks.rivals.lstm import SequencePlan, plan_sequences
from benchmarks.samples import Sample


class ManualLSTM(TorchRunner):
    """The order of gates is g, i, f, o."""

    gate_order: ClassVar = {"W": (2, 0, 1, 3), "U": (2, 0, 1, 3), "b": (2, 0, 1, 3)}
    autograd = False
    cell_forward: Callable[..., None] = staticmethod(cells.lstm_forward)
    cell_backward: Callable[..., None] = staticmethod(cells.lstm_backward)

    def parameters_loaded(self) -> None:
        self.buffers = Buffers(self.device)
        for name, parameter in self.p.items():
            if name != "embedding":
                parameter.grad = torch.zeros_like(parameter)

    def prepare(self, samples: SequenceOf[Sample]) -> SequencePlan:
        return self.placed(plan_sequences(samples))  # type: ignore[no-any-return]

    def forward(self, plan: SequencePlan) -> Tensor:
        p, take, n = self.p, self.buffers.take, self.sizes.hidden
        rows = len(plan.label)
        x = take("x", rows, self.sizes.embedding)
        torch.index_select(p["embedding"], 0, plan.row_token, out=x)
        gates = take("gates", rows, 4 * n)
        torch.addmm(p["b"], x, p["W"], out=gates)
        c, t, h = (take(name, rows, n).split(plan.steps) for name in ("c", "t", "h"))
        zero = take("zero", plan.steps[0], n)
        before = zero
        for step, gate in enumerate(gates.split(plan.steps)):
            if step:
                gate.addmm_(h[step - 1][: len(gate)], p["U"])
                before = c[step - 1][: len(gate)]
            self.cell_forward(gate, before, c[step], t[step], h[step])
        return torch.addmm(p["b_out"], take("h", rows, n), p["W_out"])

    def backward(self, plan: SequencePlan, logits: Tensor) -> tuple[Tensor, Tensor]:
        p, take, n = self.p, self.buffers.take, self.sizes.hidden
        g = {name: parameter.grad for name, parameter in p.items()}
        rows, first = len(plan.label), plan.steps[0]
        loss, d_logits = cross_entropy_backward(logits, plan.label, rows)
        h, gates = take("h", rows, n), take("gates", rows, 4 * n)
        torch.mm(h.t(), d_logits, out=g["W_out"])
        torch.sum(d_logits, 0, out=g["b_out"])
        dh_rows = take("dh", rows, n)
        torch.mm(d_logits, p["W_out"].t(), out=dh_rows)

        dc = take("dc", first, n).zero_()
        c, t = take("c", rows, n).split(plan.steps), take("t", rows, n).split(plan.steps)
        gate, dh = gates.split(plan.steps), dh_rows.split(plan.steps)
        turned = p["U"].t()
        for step in range(len(plan.steps) - 1, -1, -1):
            running = plan.steps[step]
            before = c[step - 1][:running] if step else take("zero", first, n)
            self.cell_backward(gate[step], before, t[step], dh[step], dc[:running])
            if step:
                dh[step - 1][:running].addmm_(gate[step], turned)

        h_before = take("h_before", rows - first, n)
        torch.index_select(h, 0, plan.before, out=h_before)
        torch.mm(h_before.t(), gates[first:], out=g["U"])
        x = take("x", rows, self.sizes.embedding)
        torch.mm(x.t(), gates, out=g["W"])
        torch.sum(gates, 0, out=g["b"])
        dx = take("dx", rows, self.sizes.embedding)
        torch.mm(gates, p["W"].t(), out=dx)
        return loss, self.rows_gradient(dx, plan.token, len(plan.unique))

    @torch.no_grad()
    def compute_gradients(self, plan: SequencePlan) -> tuple[Tensor, Tensor]:
        return self.backward(plan, self.forward(plan))

    @torch.inference_mode()
    def infer(self, plan: SequencePlan) -> Tensor:
        return self.forward(plan)

    def logits(self, plan: SequencePlan) -> npt.NDArray[np.float32]:
        rows = self.infer(plan).cpu().numpy()
        result = np.empty_like(rows)
        result[plan.vertex] = rows
        return result


class ManualLSTMCompiled(fused_cells.Compiled, ManualLSTM):
    """The pointwise part fused by torch.compile."""

    cell_forward = staticmethod(fused_cells.compiled(fused_cells.lstm_forward))
    cell_backward = staticmethod(fused_cells.compiled(fused_cells.lstm_backward))
