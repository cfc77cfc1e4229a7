"""One sample and one vertex at a time: the recursion every tutorial shows, with autograd."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rivals.base import TorchRunner
from benchmarks.samples import Sample, Sequence, Tree


@dataclass(frozen=True)
class NaivePlan:
    samples: SequenceOf[Any]
    unique: Tensor
    label: Tensor


class _Naive(TorchRunner):
    def load_parameters(self, parameters: Any) -> None:
        super().load_parameters(parameters)
        self.embedding = torch.nn.Embedding.from_pretrained(
            self.p["embedding"], freeze=False, sparse=True
        )

    def prepare(self, samples: SequenceOf[Sample]) -> NaivePlan:
        token = np.concatenate([sample.token for sample in samples])
        label = np.concatenate([sample.label for sample in samples]).astype(np.int64)
        unique = np.unique(token[token >= 0]).astype(np.int64)
        return NaivePlan(samples, torch.from_numpy(unique), torch.from_numpy(label))

    @abstractmethod
    def states(self, sample: Any) -> list[Tensor]:
        """h of every vertex in order, each [1, hidden]."""

    def forward(self, plan: NaivePlan) -> Tensor:
        """Logits of every vertex, [vertices, classes]."""
        h: list[Tensor] = []
        for sample in plan.samples:
            h.extend(self.states(sample))
        return torch.addmm(self.p["b_out"], torch.cat(h), self.p["W_out"])

    def compute_gradients(self, plan: NaivePlan) -> tuple[Tensor, Tensor]:
        self.clear_gradients()
        self.embedding.weight.grad = None
        loss = F.cross_entropy(self.forward(plan), plan.label, ignore_index=-1)
        loss.backward()
        grad = self.embedding.weight.grad
        assert grad is not None
        return loss.detach(), grad.coalesce().values()  # type: ignore[no-untyped-call]

    @torch.inference_mode()
    def infer(self, plan: NaivePlan) -> Tensor:
        return self.forward(plan)

    def logits(self, plan: NaivePlan) -> npt.NDArray[np.float32]:
        return self.infer(plan).numpy()[plan.label.numpy() >= 0]


class NaiveTreeLSTM(_Naive):
    def states(self, sample: Tree) -> list[Tensor]:
        p, h_size = self.p, self.sizes.hidden
        left, right, token = sample.left.tolist(), sample.right.tolist(), sample.token.tolist()
        h_of: list[Any] = [None] * len(sample)

        def visit(v: int) -> tuple[Tensor, Tensor]:
            if left[v] < 0:
                x = self.embedding(torch.tensor([token[v]]))
                i, o, u = (x @ p["W"] + p["b"][: 3 * h_size]).chunk(3, 1)
                c = torch.sigmoid(i) * torch.tanh(u)
            else:
                c_l, h_l = visit(left[v])
                c_r, h_r = visit(right[v])
                gates = torch.cat([h_l, h_r], 1) @ p["U"] + p["b"]
                i, o, u, f_l, f_r = gates.chunk(5, 1)
                c = torch.sigmoid(i) * torch.tanh(u)
                c = c + torch.sigmoid(f_l) * c_l + torch.sigmoid(f_r) * c_r
            h = torch.sigmoid(o) * torch.tanh(c)
            h_of[v] = h
            return c, h

        sys.setrecursionlimit(max(sys.getrecursionlimit(), 4 * len(sample) + 1000))
        visit(len(sample) - 1)
        return h_of


class NaiveTreeFC(_Naive):
    def states(self, sample: Tree) -> list[Tensor]:
        p = self.p
        left, right, token = sample.left.tolist(), sample.right.tolist(), sample.token.tolist()
        h_of: list[Any] = [None] * len(sample)

        def visit(v: int) -> Tensor:
            if left[v] < 0:
                h = torch.tanh(self.embedding(torch.tensor([token[v]])) + p["b"])
            else:
                children = torch.cat([visit(left[v]), visit(right[v])], 1)
                h = torch.tanh(children @ p["W"] + p["b"])
            h_of[v] = h
            return h

        visit(len(sample) - 1)
        return h_of


class NaiveLSTM(_Naive):
    def states(self, sample: Sequence) -> list[Tensor]:
        p = self.p
        h = torch.zeros(1, self.sizes.hidden)
        c = torch.zeros(1, self.sizes.hidden)
        states = []
        for token in sample.token.tolist():
            x = self.embedding(torch.tensor([token]))
            i, f, g, o = (x @ p["W"] + h @ p["U"] + p["b"]).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return states
