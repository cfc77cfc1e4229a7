"""One optimiser step of the PyTorch rivals: dense parameters fused, embedding rows sparse."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

EPSILON = 1e-10  # of Adagrad


class Updates:
    """SGD or Adagrad. Of the embedding only the rows a batch touched move."""

    def __init__(self, kind: str, lr: float, dense: SequenceOf[Tensor], embedding: Tensor) -> None:
        if kind not in ("sgd", "adagrad"):
            raise ValueError(f"optimizer {kind!r}; there are sgd and adagrad")
        self.lr = lr
        self.embedding = embedding
        self.squares = torch.zeros_like(embedding) if kind == "adagrad" else None
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(dense, lr=lr, fused=True)
            if kind == "sgd"
            else torch.optim.Adagrad(dense, lr=lr, eps=EPSILON, fused=True)
        )

    @torch.no_grad()
    def step(self, rows: Tensor, grad: Tensor) -> None:
        """Dense parameters by their .grad; embedding rows `rows` (distinct) by `grad`."""
        self.optimizer.step()
        if self.squares is None:
            self.embedding.index_put_((rows,), grad.mul_(-self.lr), accumulate=True)
            return
        squares = self.squares.index_select(0, rows).addcmul_(grad, grad)
        self.squares.index_copy_(0, rows, squares)
        moved = self.embedding.index_select(0, rows)
        moved.addcdiv_(grad, squares.sqrt_().add_(EPSILON), value=-self.lr)
        self.embedding.index_copy_(0, rows, moved)
