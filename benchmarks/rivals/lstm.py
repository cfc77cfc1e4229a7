"""LSTMs over sequences of any length: padded and packed nn.LSTM, and step by step by hand.

Sequences are sorted by length, longest first; token rows stand step by step (row r of a step is
the r-th longest sequence), as in a PackedSequence. Embedding rows are unique and updated sparsely,
output layer and loss run once over all tokens: the recurrence is the only difference.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from benchmarks.rivals.base import TorchRunner
from benchmarks.rivals.device import autocast
from benchmarks.samples import Sample
from benchmarks.workloads import Parameters


@dataclass(frozen=True)
class SequencePlan:
    unique: Tensor
    token: Tensor  # row -> index in `unique`
    row_token: Tensor  # row -> token
    steps: list[int]  # sequences still running at each step
    batch_sizes: Tensor  # the same
    label: Tensor  # [rows]
    vertex: npt.NDArray[np.int64]  # row -> number of the token in the batch
    padded_token: Tensor  # [steps, sequences], index in `unique`
    padded_row: Tensor  # row -> row of the padded matrix
    before: Tensor  # row of every later step -> row of the step before


def plan_sequences(samples: SequenceOf[Sample]) -> SequencePlan:
    lengths = np.array([len(sample) for sample in samples])
    first = np.cumsum(lengths) - lengths
    longest = np.argsort(-lengths, kind="stable")
    sorted_lengths = lengths[longest]
    count, most = len(lengths), int(sorted_lengths[0])
    running = np.arange(most)[:, None] < sorted_lengths[None, :]  # [steps, sequences]
    padded_row = np.flatnonzero(running)
    step, sequence = np.divmod(padded_row, count)
    vertex = first[longest][sequence] + step
    steps = running.sum(1)
    token = np.concatenate([sample.token for sample in samples]).astype(np.int64)[vertex]
    label = np.concatenate([sample.label for sample in samples]).astype(np.int64)[vertex]
    unique, place = np.unique(token, return_inverse=True)
    padded = np.zeros(most * count, np.int64)
    padded[padded_row] = place
    step_begin = np.cumsum(steps) - steps
    later = step > 0
    before = step_begin[step[later] - 1] + sequence[later]
    return SequencePlan(
        torch.from_numpy(unique),
        torch.from_numpy(place),
        torch.from_numpy(token),
        steps.tolist(),
        torch.from_numpy(steps),
        torch.from_numpy(label),
        vertex,
        torch.from_numpy(padded.reshape(most, count)),
        torch.from_numpy(padded_row),
        torch.from_numpy(before),
    )


class _LSTM(TorchRunner):
    def prepare(self, samples: SequenceOf[Sample]) -> SequencePlan:
        return self.placed(plan_sequences(samples))  # type: ignore[no-any-return]

    @abstractmethod
    def states(self, plan: SequencePlan, embedding_rows: Tensor) -> Tensor:
        """h of every row [rows, hidden]."""

    def forward(self, plan: SequencePlan, embedding_rows: Tensor) -> Tensor:
        h = self.states(plan, embedding_rows)
        return torch.addmm(self.p["b_out"], h, self.p["W_out"])

    def compute_gradients(self, plan: SequencePlan) -> tuple[Tensor, Tensor]:
        self.clear_gradients()
        rows = self.p["embedding"].index_select(0, plan.unique).requires_grad_()
        with autocast(self.case):
            loss = F.cross_entropy(self.forward(plan, rows), plan.label, ignore_index=-1)
        loss.backward()
        assert rows.grad is not None
        return loss.detach(), rows.grad

    @torch.inference_mode()
    def infer(self, plan: SequencePlan) -> Tensor:
        with autocast(self.case):
            return self.forward(plan, self.p["embedding"].index_select(0, plan.unique))

    def logits(self, plan: SequencePlan) -> npt.NDArray[np.float32]:
        rows = self.infer(plan).float().cpu().numpy()
        result = np.empty_like(rows)
        result[plan.vertex] = rows
        return result


class _Module(_LSTM):
    """nn.LSTM has transposed parameters, and a second bias, which stays zero."""

    def load_parameters(self, parameters: Parameters) -> None:
        turned = {
            name: np.ascontiguousarray(value.T) if name in ("W", "U") else value
            for name, value in parameters.items()
        }
        super().load_parameters(turned)

    @torch.no_grad()
    def parameters_loaded(self) -> None:
        """Use the parameters of the module, which cuDNN needs in one block of memory."""
        sizes = self.sizes
        self.module = torch.nn.LSTM(sizes.embedding, sizes.hidden, device=self.device)
        self.module.bias_hh_l0.requires_grad_(False).zero_()
        for theirs, ours in (("weight_ih_l0", "W"), ("weight_hh_l0", "U"), ("bias_ih_l0", "b")):
            parameter = getattr(self.module, theirs)
            parameter.copy_(self.p[ours])
            self.p[ours] = parameter

    def _common(self, name: str, array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return array.T.copy() if name in ("W", "U") else array.copy()


class PaddedLSTM(_Module):
    """All sequences padded to the longest of the batch; the output layer skips the padding."""

    def states(self, plan: SequencePlan, embedding_rows: Tensor) -> Tensor:
        h, _ = self.module(self.rows_of(embedding_rows, plan.padded_token))
        return h.flatten(0, 1).index_select(0, plan.padded_row)


class PackedLSTM(_Module):
    """nn.LSTM on a PackedSequence, already sorted."""

    def states(self, plan: SequencePlan, embedding_rows: Tensor) -> Tensor:
        x = PackedSequence(self.rows_of(embedding_rows, plan.token), plan.batch_sizes)
        h, _ = self.module(x)
        return h.data  # type: ignore[no-any-return]


class HandLSTM(_LSTM):
    """One product for all inputs, then one step at a time over the running sequences.

    The order of gates is g, i, f, o: one tanh slice, one sigmoid slice.
    """

    gate_order: ClassVar = {"W": (2, 0, 1, 3), "U": (2, 0, 1, 3), "b": (2, 0, 1, 3)}

    def states(self, plan: SequencePlan, embedding_rows: Tensor) -> Tensor:
        n, p = self.sizes.hidden, self.p
        x = self.rows_of(embedding_rows, plan.token)
        inputs = torch.addmm(p["b"], x, p["W"]).split(plan.steps)
        h = c = x.new_zeros(plan.steps[0], n)
        states = []
        for step, gates in enumerate(inputs):
            running = plan.steps[step]
            if len(h) != running:
                h, c = h[:running], c[:running]
            if step:
                gates = torch.addmm(gates, h, p["U"])  # noqa: PLW2901
            g, rest = gates.split([n, 3 * n], 1)
            i, f, o = torch.sigmoid(rest).split(n, 1)
            c = torch.addcmul(i * torch.tanh(g), f, c)
            h = o * torch.tanh(c)
            states.append(h)
        return torch.cat(states)
