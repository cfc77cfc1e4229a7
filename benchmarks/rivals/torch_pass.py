"""A pass of a PyTorch program over prepared batches, for `benchmarks.rivals.program`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.rivals.program import Given


def torch_pass(
    network: torch.nn.Module,
    batches: Sequence[Any],
    given: Given,
    loss_of: Callable[[Any], torch.Tensor] | None = None,
) -> Callable[[], float]:
    """Return a function that trains on all batches, or computes losses, and returns the last.

    It sets the number of threads of the process. loss_of: returns the loss of a batch; None: the
    network does.
    """
    torch.set_num_threads(given["threads"])
    loss_of = loss_of or network
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=given["lr"])

    def train() -> float:
        for batch in batches:
            optimizer.zero_grad()
            loss = loss_of(batch)
            loss.backward()
            optimizer.step()
        return float(loss.item())

    @torch.inference_mode()
    def infer() -> float:
        return [float(loss_of(batch).item()) for batch in batches][-1]

    return train if given["training"] else infer
