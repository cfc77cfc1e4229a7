"""Matrices a program keeps from batch to batch."""

from __future__ import annotations

import torch
from torch import Tensor


class Buffers:
    """Named float matrices that only grow."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.kept: dict[str, Tensor] = {}

    def take(self, name: str, rows: int, width: int) -> Tensor:
        """Return a contiguous [rows, width] matrix with undefined contents."""
        size = rows * width
        kept = self.kept.get(name)
        if kept is None or kept.numel() < size:
            with torch.inference_mode(False):
                kept = torch.zeros(size * 5 // 4, device=self.device)
            self.kept[name] = kept
        return kept[:size].view(rows, width)
