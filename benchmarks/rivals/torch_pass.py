"""A pass of a PyTorch program over prepared batches, for `benchmarks.rivals.program`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.rivals.program import Given


def torch_pass(
    network: torch.nn.Module, batches: Sequence[Any], given: Given
) -> Callable[[], float]:
    """Return a function that trains on all batches, or computes losses, and returns the last."""
    optimizer = torch.optim.SGD(network.parameters(), lr=given["lr"])

    def train() -> float:
        for batch in batches:
            optimizer.zero_grad()
            loss = network(batch)
            loss.backward()
            optimizer.step()
        return float(loss.item())

    @torch.inference_mode()
    def infer() -> float:
        return [float(network(batch).item()) for batch in batches][-1]

    return train if given["training"] else infer
