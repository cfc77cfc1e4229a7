"""One optimiser step of the PyTorch rivals: dense parameters fused, embedding rows sparse."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

EPSILON = 1e-10  # Adagrad's


class Updates:
    """SGD or Adagrad. Only the rows of the embedding that a batch touched move.

    On the CPU, dense parameters use PyTorch's fused step; on a GPU, a few kernels over all of
    them, which a CUDA graph can capture, unlike its Adagrad.
    """

    def __init__(self, kind: str, lr: float, dense: SequenceOf[Tensor], embedding: Tensor) -> None:
        if kind not in ("sgd", "adagrad"):
            raise ValueError(f"optimizer {kind!r}; there are sgd and adagrad")
        self.lr = lr
        self.dense = list(dense)
        self.embedding = embedding
        self.squares = torch.zeros_like(embedding) if kind == "adagrad" else None
        self.dense_squares = (
            [torch.zeros_like(p) for p in dense]
            if kind == "adagrad" and embedding.device.type != "cpu"
            else []
        )
        self.optimizer: torch.optim.Optimizer | None = None
        if embedding.device.type == "cpu":
            self.optimizer = (
                torch.optim.SGD(dense, lr=lr, fused=True)
                if kind == "sgd"
                else torch.optim.Adagrad(dense, lr=lr, eps=EPSILON, fused=True)
            )

    @property
    def states(self) -> list[Tensor]:
        """States that a step on a GPU reads and writes in addition to the parameters."""
        return self.dense_squares + ([] if self.squares is None else [self.squares])

    @torch.no_grad()
    def step(self, rows: Tensor, grad: Tensor) -> None:
        """Update dense parameters by their .grad, distinct embedding rows `rows` by `grad`."""
        if self.optimizer is not None:
            self.optimizer.step()
        else:
            self._dense_step()
        if self.squares is None:
            if grad.device.type != "cpu":
                self.embedding.index_add_(0, rows, grad, alpha=-self.lr)
            else:
                self.embedding.index_put_((rows,), grad.mul_(-self.lr), accumulate=True)
            return
        squares = self.squares.index_select(0, rows).addcmul_(grad, grad)
        self.squares.index_copy_(0, rows, squares)
        moved = self.embedding.index_select(0, rows)
        moved.addcdiv_(grad, squares.sqrt_().add_(EPSILON), value=-self.lr)
        self.embedding.index_copy_(0, rows, moved)

    def _dense_step(self) -> None:
        grads = [p.grad for p in self.dense if p.grad is not None]
        if len(grads) != len(self.dense):
            raise RuntimeError(f"{len(self.dense) - len(grads)} parameters have no gradient")
        if not self.dense_squares:
            torch._foreach_add_(self.dense, grads, alpha=-self.lr)
            return
        torch._foreach_addcmul_(self.dense_squares, grads, grads)
        roots = torch._foreach_sqrt(self.dense_squares)
        torch._foreach_add_(roots, EPSILON)
        torch._foreach_addcdiv_(self.dense, grads, roots, value=-self.lr)
