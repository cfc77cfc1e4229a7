"""Rivals on a CPU whose products have less precision, by the two ways that PyTorch has there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from benchmarks.rivals.hand_tree import HandPlan, HandTreeLSTM
from benchmarks.rivals.manual_tree import ManualTreeLSTM, ManualTreeLSTMCompiled


@contextmanager
def _medium() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Medium:
    """Products of float32 in bfloat16: PyTorch's precision "medium".

    This holds on processors with AMX; others use oneDNN's products of float32 instead of
    MKL's. PyTorch's "high" changes nothing on a CPU with this version.
    """

    def forward(self, *args: Any) -> Tensor:
        with _medium():
            return super().forward(*args)  # type: ignore[misc,no-any-return]

    def compute_gradients(self, plan: Any) -> tuple[Tensor, Tensor]:
        with _medium():
            return super().compute_gradients(plan)  # type: ignore[misc,no-any-return]


class HandTreeLSTMMedium(Medium, HandTreeLSTM):
    pass


class ManualTreeLSTMMedium(Medium, ManualTreeLSTM):
    pass


class ManualTreeLSTMCompiledMedium(Medium, ManualTreeLSTMCompiled):
    pass


class HandTreeLSTMAutocast(HandTreeLSTM):
    """Under ``torch.autocast``: operands of products are rounded to bfloat16, and so are results
    and the pointwise part after them."""

    def forward(self, plan: HandPlan, embedding_rows: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(plan, embedding_rows).float()
