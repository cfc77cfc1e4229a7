"""The Tree-LSTM of the treebank by cavs.torch.Module, in a training loop of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

import cavs.torch
from benchmarks.rivals.updates import Updates
from benchmarks.runner import Runner
from benchmarks.runners_cavs import BinaryTreeLSTM, Classifier, graph_of, parameter_name
from benchmarks.samples import Sample
from benchmarks.workloads import Parameters
from cavs import data


class TorchModuleTreeLSTM(Runner):
    """Loss and autograd are PyTorch's, and updates those of its rivals, with sparse rows."""

    def load_parameters(self, parameters: Parameters) -> None:
        torch.set_num_threads(self.case.threads)
        cavs.set_num_threads(self.case.threads)
        model = Classifier(self.sizes, BinaryTreeLSTM(self.sizes))
        named = model.parameters()
        for name, value in parameters.items():
            named[parameter_name(name)].value = value
        self.model, self.names = model, list(parameters)
        self.module = cavs.torch.Module(model, sparse=True)
        found = dict(self.module.named_parameters())
        table = found.pop(parameter_name("embedding"))
        self.table = table
        self.updates = Updates(self.case.optimizer, self.case.lr, list(found.values()), table)

    def parameters(self) -> Parameters:
        named = self.model.parameters()
        return {name: named[parameter_name(name)].current().copy() for name in self.names}

    def prepare(self, samples: SequenceOf[Sample]) -> tuple[data.GraphBatch, torch.Tensor]:
        plan = data.batch([graph_of(sample) for sample in samples])
        return plan, torch.from_numpy(plan["label"].astype(np.int64))

    def loss(self, plan: tuple[data.GraphBatch, torch.Tensor]) -> Any:
        """Return the loss after a backward pass."""
        self.module.zero_grad()
        batch, label = plan
        loss = F.cross_entropy(self.module(batch), label, ignore_index=-1)
        loss.backward()
        return loss.detach()

    def train(self, plan: tuple[data.GraphBatch, torch.Tensor]) -> float:
        loss = self.loss(plan)
        rows = self.table.grad
        self.updates.step(rows._indices()[0], rows._values())  # no row occurs twice
        return float(loss)

    def gradients(self, plan: tuple[data.GraphBatch, torch.Tensor]) -> tuple[float, Parameters]:
        loss = self.loss(plan)
        found = dict(self.module.named_parameters())
        grads = {name: found[parameter_name(name)].grad for name in self.names}
        return float(loss), {
            name: (grad.to_dense() if grad.is_sparse else grad).numpy()
            for name, grad in grads.items()
        }

    @torch.no_grad()
    def infer(self, plan: tuple[data.GraphBatch, torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = self.module(plan[0])
        return found

    def logits(self, plan: tuple[data.GraphBatch, torch.Tensor]) -> npt.NDArray[np.float32]:
        rows: npt.NDArray[np.float32] = self.infer(plan).numpy()[plan[1].numpy() >= 0]
        return rows
