"""What the PyTorch runners share: parameters as tensors, threads, the checks' read-out."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.rivals.updates import Updates
from benchmarks.runner import Runner
from benchmarks.workloads import Parameters


def permute_gates(array: npt.NDArray[Any], order: tuple[int, ...]) -> npt.NDArray[Any]:
    """Blocks of columns in another order: block i of the result is block order[i] of `array`."""
    blocks = np.split(array, len(order), axis=-1)
    return np.concatenate([blocks[i] for i in order], axis=-1)


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(i) for i in range(len(order)))


class TorchRunner(Runner):
    """Parameters live in ``self.p``; gates may stand in another order than the common one.

    ``gate_order[name]``: which common block stands at each place of this runner's parameter.
    """

    gate_order: ClassVar[dict[str, tuple[int, ...]]] = {}
    autograd = True

    def load_parameters(self, parameters: Parameters) -> None:
        torch.set_num_threads(self.case.threads)
        self.p: dict[str, Tensor] = {}
        for name, value in parameters.items():
            order = self.gate_order.get(name)
            array = permute_gates(value, order) if order else value
            tensor = torch.from_numpy(array.copy())
            self.p[name] = tensor.requires_grad_(self.autograd and name != "embedding")
        self.parameters_loaded()
        dense = [tensor for name, tensor in self.p.items() if name != "embedding"]
        self.updates = Updates(self.case.optimizer, self.case.lr, dense, self.p["embedding"])

    def parameters_loaded(self) -> None:
        """Hook: parameters are in ``self.p``, the optimiser is not yet made."""

    def parameters(self) -> Parameters:
        return {
            name: self._common(name, tensor.detach().numpy()) for name, tensor in self.p.items()
        }

    def _common(self, name: str, array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        order = self.gate_order.get(name)
        return permute_gates(array, inverse(order)) if order else array.copy()

    @abstractmethod
    def compute_gradients(self, plan: Any) -> tuple[Tensor, Tensor]:
        """Loss, and the gradient of the embedding's rows ``plan.unique``; the rest in .grad."""

    def train(self, plan: Any) -> float:
        loss, rows_grad = self.compute_gradients(plan)
        self.updates.step(plan.unique, rows_grad)
        return loss.item()

    def gradients(self, plan: Any) -> tuple[float, Parameters]:
        loss, rows_grad = self.compute_gradients(plan)
        result: Parameters = {}
        for name, tensor in self.p.items():
            if name == "embedding":
                dense = torch.zeros_like(tensor).index_add_(0, plan.unique, rows_grad)
                result[name] = dense.numpy()
            elif tensor.grad is not None:
                result[name] = self._common(name, tensor.grad.numpy())
        return loss.item(), result

    def clear_gradients(self) -> None:
        """Gradients are written, not added: autograd takes over the tensors it made."""
        for tensor in self.p.values():
            tensor.grad = None
