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
    tokens: list[Tensor]  # one per sample
    unique: Tensor
    label: Tensor


class _Naive(TorchRunner):
    def load_parameters(self, parameters: Any) -> None:
        super().load_parameters(parameters)
        self.embedding = torch.nn.Embedding.from_pretrained(
            self.p["embedding"], freeze=False, sparse=True
        )

    def prepare(self, samples: SequenceOf[Sample]) -> NaivePlan:
        tokens = [sample.token.astype(np.int64) for sample in samples]
        token = np.concatenate(tokens)
        label = np.concatenate([sample.label for sample in samples]).astype(np.int64)
        plan = NaivePlan(
            samples,
            [torch.from_numpy(t) for t in tokens],
            torch.from_numpy(np.unique(token[token >= 0])),
            torch.from_numpy(label),
        )
        return self.placed(plan)  # type: ignore[no-any-return]

    @abstractmethod
    def states(self, sample: Any, token: Tensor) -> list[Tensor]:
        """Return h of every vertex in order, each [1, hidden]."""

    def forward(self, plan: NaivePlan) -> Tensor:
        """Return logits of every vertex, [vertices, classes]."""
        h: list[Tensor] = []
        for sample, token in zip(plan.samples, plan.tokens, strict=True):
            h.extend(self.states(sample, token))
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
        return self.infer(plan).cpu().numpy()[plan.label.cpu().numpy() >= 0]


class NaiveTreeLSTM(_Naive):
    def states(self, sample: Tree, token: Tensor) -> list[Tensor]:
        p, h_size = self.p, self.sizes.hidden
        left, right = sample.left.tolist(), sample.right.tolist()
        h_of: list[Any] = [None] * len(sample)

        def visit(v: int) -> tuple[Tensor, Tensor]:
            if left[v] < 0:
                x = self.embedding(token[v : v + 1])
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
    def states(self, sample: Tree, token: Tensor) -> list[Tensor]:
        p = self.p
        left, right = sample.left.tolist(), sample.right.tolist()
        h_of: list[Any] = [None] * len(sample)

        def visit(v: int) -> Tensor:
            if left[v] < 0:
                h = torch.tanh(self.embedding(token[v : v + 1]) + p["b"])
            else:
                children = torch.cat([visit(left[v]), visit(right[v])], 1)
                h = torch.tanh(children @ p["W"] + p["b"])
            h_of[v] = h
            return h

        visit(len(sample) - 1)
        return h_of


class NaiveLSTM(_Naive):
    def states(self, sample: Sequence, token: Tensor) -> list[Tensor]:
        p = self.p
        h = c = p["b"].new_zeros(1, self.sizes.hidden)
        states = []
        for one in token.split(1):
            x = self.embedding(one)
            i, f, g, o = (x @ p["W"] + h @ p["U"] + p["b"]).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return states
