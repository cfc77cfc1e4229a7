"""Base of the PyTorch runners: parameters as tensors, threads, outputs for the checks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as SequenceOf
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rivals.device import placed, set_up, synchronize
from benchmarks.rivals.gates import inverse, permute_gates
from benchmarks.rivals.updates import Updates
from benchmarks.runner import Runner
from benchmarks.workloads import Parameters


class TorchRunner(Runner):
    """Parameters are in ``self.p``; the order of gates may differ from the common one.

    ``gate_order[name]``: the common block at each position of this runner's parameter.
    """

    gate_order: ClassVar[dict[str, tuple[int, ...]]] = {}
    autograd = True

    def load_parameters(self, parameters: Parameters) -> None:
        if self.case.precision == "bf16" and not self.autograd:
            raise ValueError(f"{type(self).__name__} has fp32 and tf32 only")
        self.device = set_up(self.case)
        self.p: dict[str, Tensor] = {}
        for name, value in parameters.items():
            order = self.gate_order.get(name)
            array = permute_gates(value, order) if order else value
            tensor = torch.from_numpy(array.copy()).to(self.device)
            self.p[name] = tensor.requires_grad_(self.autograd and name != "embedding")
        self.parameters_loaded()
        dense = [tensor for name, tensor in self.p.items() if name != "embedding"]
        self.updates = Updates(self.case.optimizer, self.case.lr, dense, self.p["embedding"])

    def parameters_loaded(self) -> None:
        """Hook: parameters are in ``self.p``, the optimiser does not exist yet."""

    def parameters(self) -> Parameters:
        return {
            name: self._common(name, tensor.detach().cpu().numpy())
            for name, tensor in self.p.items()
        }

    def _common(self, name: str, array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        order = self.gate_order.get(name)
        return permute_gates(array, inverse(order)) if order else array.copy()

    @abstractmethod
    def compute_gradients(self, plan: Any) -> tuple[Tensor, Tensor]:
        """Return loss and gradient of the rows ``plan.unique``; other gradients are in .grad."""

    def step(self, plan: Any) -> Tensor:
        """Return the loss before an update; on a GPU it may not be computed yet."""
        loss, rows_grad = self.compute_gradients(plan)
        self.updates.step(plan.unique, rows_grad)
        return loss.detach()

    def train(self, plan: Any) -> float:
        return self.step(plan).item()

    def train_all(self, plans: SequenceOf[Any]) -> list[float]:
        losses: list[float] = torch.stack([self.step(plan).clone() for plan in plans]).tolist()
        return losses

    def gradients(self, plan: Any) -> tuple[float, Parameters]:
        loss, rows_grad = self.compute_gradients(plan)
        result: Parameters = {}
        for name, tensor in self.p.items():
            if name == "embedding":
                dense = torch.zeros_like(tensor).index_add_(0, plan.unique, rows_grad)
                result[name] = dense.cpu().numpy()
            elif tensor.grad is not None:
                result[name] = self._common(name, tensor.grad.cpu().numpy())
        return loss.item(), result

    def placed(self, plan: Any) -> Any:
        """Return the plan on the device."""
        return placed(plan, self.device)

    def rows_of(self, matrix: Tensor, index: Tensor) -> Tensor:
        """Return rows of a matrix, with the cheaper of two backward passes of PyTorch."""
        if self.device.type == "cpu":
            return F.embedding(index, matrix)
        return matrix.index_select(0, index.flatten()).view(*index.shape, -1)

    def rows_gradient(self, grad: Tensor, index: Tensor, rows: int) -> Tensor:
        """Sum the rows of ``grad`` by ``index``: the backward pass of ``rows_of``."""
        if self.device.type == "cpu":
            return torch.ops.aten.embedding_dense_backward(grad, index, rows, -1, False)  # type: ignore[no-any-return]
        return grad.new_zeros(rows, grad.shape[1]).index_add_(0, index, grad)

    def synchronize(self) -> None:
        synchronize(self.device)

    def device_memory(self) -> int:
        return 0 if self.device.type == "cpu" else torch.cuda.max_memory_reserved(self.device)

    def clear_gradients(self) -> None:
        """Drop gradients, so that autograd writes instead of adding."""
        for tensor in self.p.values():
            tensor.grad = None
