"""The pointwise parts of ``cells`` written for torch.compile, which fuses each into one loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.rivals.base import TorchRunner
from benchmarks.workloads import Parameters


def leaf_forward(gates: Tensor, c: Tensor, t: Tensor, h: Tensor) -> None:
    n = c.shape[1]
    u, i, o = torch.tanh(gates[:, :n]), *torch.sigmoid(gates[:, n:]).split(n, 1)
    cell = i * u
    tanh = torch.tanh(cell)
    c.copy_(cell)
    t.copy_(tanh)
    h.copy_(o * tanh)
    gates.copy_(torch.cat([u, i, o], 1))


def leaf_backward(gates: Tensor, t: Tensor, dh: Tensor, dc: Tensor) -> None:
    u, i, o = gates.split(t.shape[1], 1)
    whole = dc + dh * o * (1 - t * t)
    du = whole * i * (1 - u * u)
    di = whole * u * i * (1 - i)
    gates.copy_(torch.cat([du, di, dh * t * o * (1 - o)], 1))


def inner_forward(gates: Tensor, children_c: Tensor, c: Tensor, t: Tensor, h: Tensor) -> None:
    n = c.shape[1]
    u = torch.tanh(gates[:, :n])
    i, o, f_l, f_r = torch.sigmoid(gates[:, n:]).split(n, 1)
    cell = i * u + f_l * children_c[:, 0] + f_r * children_c[:, 1]
    tanh = torch.tanh(cell)
    c.copy_(cell)
    t.copy_(tanh)
    h.copy_(o * tanh)
    gates.copy_(torch.cat([u, i, o, f_l, f_r], 1))


def inner_backward(
    gates: Tensor, children_c: Tensor, t: Tensor, dh: Tensor, dc: Tensor, children_dc: Tensor
) -> None:
    u, i, o, f_l, f_r = gates.split(t.shape[1], 1)
    c_l, c_r = children_c.unbind(1)
    whole = dc + dh * o * (1 - t * t)
    du = whole * i * (1 - u * u)
    di = whole * u * i * (1 - i)
    do = dh * t * o * (1 - o)
    df_l = whole * c_l * f_l * (1 - f_l)
    df_r = whole * c_r * f_r * (1 - f_r)
    children_dc.copy_(torch.stack([whole * f_l, whole * f_r], 1))
    gates.copy_(torch.cat([du, di, do, df_l, df_r], 1))


def lstm_forward(gates: Tensor, c_before: Tensor, c: Tensor, t: Tensor, h: Tensor) -> None:
    n = c.shape[1]
    g = torch.tanh(gates[:, :n])
    i, f, o = torch.sigmoid(gates[:, n:]).split(n, 1)
    cell = i * g + f * c_before
    tanh = torch.tanh(cell)
    c.copy_(cell)
    t.copy_(tanh)
    h.copy_(o * tanh)
    gates.copy_(torch.cat([g, i, f, o], 1))


def lstm_backward(gates: Tensor, c_before: Tensor, t: Tensor, dh: Tensor, dc: Tensor) -> None:
    g, i, f, o = gates.split(t.shape[1], 1)
    whole = dc + dh * o * (1 - t * t)
    dg = whole * i * (1 - g * g)
    di = whole * g * i * (1 - i)
    df = whole * c_before * f * (1 - f)
    do = dh * t * o * (1 - o)
    dc.copy_(whole * f)
    gates.copy_(torch.cat([dg, di, df, do], 1))


class Compiled(TorchRunner):
    """A runner with compiled parts, compiled again for each case: PyTorch gives up on a function
    that it has compiled for a few sizes."""

    def load_parameters(self, parameters: Parameters) -> None:
        torch.compiler.reset()
        super().load_parameters(parameters)


def compiled(function: Callable[..., None]) -> Callable[..., Any]:
    """Return the function fused by torch.compile, for any number of rows."""
    result: Callable[..., Any] = torch.compile(function, dynamic=True, fullgraph=True)
    return result
