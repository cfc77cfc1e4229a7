"""Pointwise parts of the cells, forward and backward, in place, as few eager operators as can be.

Gates stand side by side in [rows, k * h]; forward leaves them activated, backward overwrites them
with the gradient before activation. Tree-LSTM: u, i, o(, f_l, f_r). LSTM: g, i, f, o.
"""

from __future__ import annotations

import torch
from torch import Tensor

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


def _activate(gates: Tensor, n: int) -> None:
    gates[:, :n].tanh_()
    gates[:, n:].sigmoid_()


def leaf_forward(gates: Tensor, c: Tensor, t: Tensor, h: Tensor) -> None:
    """c = i u; t = tanh(c); h = o t."""
    n = c.shape[1]
    _activate(gates, n)
    u, i, o = gates.split(n, 1)
    torch.mul(i, u, out=c)
    torch.tanh(c, out=t)
    torch.mul(o, t, out=h)


def inner_forward(gates: Tensor, children_c: Tensor, c: Tensor, t: Tensor, h: Tensor) -> None:
    """c = i u + f_l c_l + f_r c_r; children_c is [rows, 2, h]."""
    n = c.shape[1]
    _activate(gates, n)
    u, i, o, f_l, f_r = gates.split(n, 1)
    c_l, c_r = children_c.unbind(1)
    torch.mul(i, u, out=c)
    c.addcmul_(f_l, c_l).addcmul_(f_r, c_r)
    torch.tanh(c, out=t)
    torch.mul(o, t, out=h)


def lstm_forward(gates: Tensor, c_before: Tensor, c: Tensor, t: Tensor, h: Tensor) -> None:
    """c = i g + f c_before; t = tanh(c); h = o t."""
    n = c.shape[1]
    _activate(gates, n)
    g, i, f, o = gates.split(n, 1)
    torch.mul(i, g, out=c)
    c.addcmul_(f, c_before)
    torch.tanh(c, out=t)
    torch.mul(o, t, out=h)


def _input_and_output(u: Tensor, i: Tensor, o: Tensor, t: Tensor, dh: Tensor, dc: Tensor) -> None:
    du, di = dc * i, dc * u
    _tanh_backward(du, u, grad_input=u)
    _sigmoid_backward(di, i, grad_input=i)
    _sigmoid_backward(dh.mul_(t), o, grad_input=o)


def _through_output(o: Tensor, t: Tensor, dh: Tensor, dc: Tensor) -> None:
    """Add the cotangent through h = o tanh(c) to dc."""
    through = dh * o
    dc.add_(_tanh_backward(through, t, grad_input=through))


def leaf_backward(gates: Tensor, t: Tensor, dh: Tensor, dc: Tensor) -> None:
    """Overwrite gates with their gradient, from dh and the dc of the parents."""
    u, i, o = gates.split(t.shape[1], 1)
    _through_output(o, t, dh, dc)
    _input_and_output(u, i, o, t, dh, dc)


def inner_backward(
    gates: Tensor, children_c: Tensor, t: Tensor, dh: Tensor, dc: Tensor, children_dc: Tensor
) -> None:
    """Overwrite gates with their gradient; write children_dc [rows, 2, h]; overwrite dh and dc."""
    n = t.shape[1]
    u, i, o, f = gates.split([n, n, n, 2 * n], 1)
    _through_output(o, t, dh, dc)
    both = dc.unsqueeze(1)
    f = f.unflatten(1, (2, n))
    torch.mul(both, f, out=children_dc)
    _sigmoid_backward(both * children_c, f, grad_input=f)
    _input_and_output(u, i, o, t, dh, dc)


def lstm_backward(gates: Tensor, c_before: Tensor, t: Tensor, dh: Tensor, dc: Tensor) -> None:
    """Overwrite gates with their gradient, and dc, that of c, with that of c_before."""
    g, i, f, o = gates.split(t.shape[1], 1)
    _through_output(o, t, dh, dc)
    _input_and_output(g, i, o, t, dh, dc)
    df = dc * c_before
    dc.mul_(f)
    _sigmoid_backward(df, f, grad_input=f)
