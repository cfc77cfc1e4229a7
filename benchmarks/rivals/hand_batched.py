"""Parts of the PyTorch programs that are batched by hand: parameters of cavs, and steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Tensors = Mapping[str, torch.Tensor]


def tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return copies of the parameters of a model of cavs, by name."""
    return {name: torch.from_numpy(p.value.copy()) for name, p in model.parameters().items()}


def of_values(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the parameters that a process of a rival gets, arrays by name."""
    return {name: torch.from_numpy(value) for name, value in values.items()}


def table(of: Tensors, name: str) -> torch.nn.Embedding:
    """Return a table of which a step updates only the rows that it touches, as cavs does."""
    return torch.nn.Embedding.from_pretrained(of[f"{name}.weight"], freeze=False, sparse=True)


def linear(of: Tensors, name: str) -> torch.nn.Linear:
    """Return a layer with the weight [inputs, outputs] and the bias of one of cavs."""
    layer = torch.nn.Linear(*of[f"{name}.weight"].shape)
    with torch.no_grad():
        layer.weight.copy_(of[f"{name}.weight"].T)
        layer.bias.copy_(of[f"{name}.bias"])
    return layer


def lstm(of: Tensors, *cells: str) -> torch.nn.LSTM:
    """Return an LSTM with the parameters of a cell of cavs for each of its one or two directions.

    Its second bias, which cells of cavs do not have, is zero and stays so.
    """
    width, gates = of[f"{cells[0]}.W"].shape
    found = torch.nn.LSTM(width, gates // 4, bidirectional=len(cells) == 2)
    with torch.no_grad():
        for name, end in zip(cells, ("", "_reverse"), strict=False):
            for key, target in (("W", "weight_ih"), ("U", "weight_hh"), ("b", "bias_ih")):
                i, f, o, u = of[f"{name}.{key}"].movedim(-1, 0).chunk(4)
                # PyTorch has the order i, f, u, o.
                getattr(found, f"{target}_l0{end}").copy_(torch.cat([i, f, u, o]))
            getattr(found, f"bias_hh_l0{end}").zero_().requires_grad_(False)
    return found


def sgd(network: torch.nn.Module, lr: float) -> Callable[[Any], float]:
    """Return a function that takes a step on a batch and returns its loss."""
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=lr)

    def step(batch: Any) -> float:
        optimizer.zero_grad()
        loss = network(batch)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step
