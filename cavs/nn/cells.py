"""Vertex functions of the literature: one class each, written as a user would write them.

Every cell pulls ``x``, one row for each vertex (zeros where a vertex has no input), pushes its
state ``h`` (hidden_size,) and takes ``(input_size, hidden_size)``:

    h = cell(batch.graph, x=values)

On ``Graph.chain`` the child of a vertex is the vertex before it, so a cell of chains is a cell of
trees that gathers one child.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from cavs import ops
from cavs.config import require_flag
from cavs.frontend.parameter import Parameter
from cavs.frontend.vertex import State, Vertex, VertexFunction


def _forget_gate_open(gates: int, gate: int) -> Any:
    """Return initial biases: zeros, but ones for the gate that starts open (Jozefowicz 2015)."""
    return functools.partial(_one_gate, gates, gate)  # no lambda: a model can be pickled


def _one_gate(gates: int, gate: int, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return np.repeat(np.eye(gates)[gate], shape[0] // gates)


class LSTM(VertexFunction):
    """Long short-term memory on chains (Hochreiter and Schmidhuber 1997; Gers et al. 2000)."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        self.state = State(c=hidden_size, h=hidden_size)
        self.W = Parameter((input_size, 4 * hidden_size))
        self.U = Parameter((hidden_size, 4 * hidden_size))
        self.b = Parameter((4 * hidden_size,), init=_forget_gate_open(4, 1))

    def vertex(self, v: Vertex) -> None:
        """Gates i, f, o and candidate u read the input and the state before."""
        before = v.gather(0)
        i, f, o, u = ops.split(v.pull("x") @ self.W + before.h @ self.U + self.b, 4)
        c = ops.sigmoid(i) * ops.tanh(u) + ops.sigmoid(f) * before.c
        h = ops.sigmoid(o) * ops.tanh(c)
        v.scatter(c=c, h=h)
        v.push(h)


class GRU(VertexFunction):
    """Gated recurrent unit on chains (Cho et al. 2014)."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        self.state = State(h=hidden_size)
        self.W = Parameter((input_size, 3 * hidden_size))
        self.U = Parameter((hidden_size, 2 * hidden_size))
        self.U_n = Parameter((hidden_size, hidden_size))
        self.b = Parameter((3 * hidden_size,))

    def vertex(self, v: Vertex) -> None:
        """The candidate n reads the state before through the reset gate r; z keeps the state."""
        before = v.gather(0).h
        xr, xz, xn = ops.split(v.pull("x") @ self.W + self.b, 3)
        hr, hz = ops.split(before @ self.U, 2)
        r, z = ops.sigmoid(xr + hr), ops.sigmoid(xz + hz)
        n = ops.tanh(xn + (r * before) @ self.U_n)
        h = z * before + (1.0 - z) * n
        v.scatter(h=h)
        v.push(h)


class BinaryTreeLSTM(VertexFunction):
    """N-ary Tree-LSTM with N = 2 (Tai et al. 2015, section 3.2): a forget gate for each child.

    The forget gate of a child reads both children. ``forget_reads_input``: it also reads the input
    of its vertex, the term W_f x of equation 10, by the parameter ``W_f``. Without the term, the
    default, forget gates ignore the inputs of vertices above the leaves; where words are at the
    leaves alone, the two are the same function.
    """

    def __init__(
        self, input_size: int, hidden_size: int, *, forget_reads_input: bool = False
    ) -> None:
        require_flag("forget_reads_input", forget_reads_input)
        self.hidden_size = hidden_size
        self.state = State(c=hidden_size, h=hidden_size)
        self.W = Parameter((input_size, 3 * hidden_size))
        self.W_f = Parameter((input_size, hidden_size)) if forget_reads_input else None
        self.U = Parameter((2 * hidden_size, 5 * hidden_size))
        self.b = Parameter((3 * hidden_size,))
        self.b_f = Parameter((2 * hidden_size,), init="ones")

    def vertex(self, v: Vertex) -> None:
        """A leaf is (i, o, u) of its word; above, forget gates scale the cells of the children."""
        left, right = v.gather(0), v.gather(1)
        children = ops.concat([left.h, right.h]) @ self.U
        cut = 3 * self.hidden_size
        i, o, u = ops.split(v.pull("x") @ self.W + self.b + children[:cut], 3)
        f_left, f_right = ops.split(children[cut:] + self.b_f, 2)
        if self.W_f is not None:
            x_f = v.pull("x") @ self.W_f
            f_left, f_right = f_left + x_f, f_right + x_f
        c = ops.sigmoid(i) * ops.tanh(u)
        c = c + ops.sigmoid(f_left) * left.c + ops.sigmoid(f_right) * right.c
        h = ops.sigmoid(o) * ops.tanh(c)
        v.scatter(c=c, h=h)
        v.push(h)


class ChildSumTreeLSTM(VertexFunction):
    """Child-sum Tree-LSTM (Tai et al. 2015, section 3.1): any number of children, unordered."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        self.state = State(c=hidden_size, h=hidden_size)
        self.W = Parameter((input_size, 4 * hidden_size))
        self.U = Parameter((hidden_size, 3 * hidden_size))
        self.U_f = Parameter((hidden_size, hidden_size))
        self.b = Parameter((4 * hidden_size,), init=_forget_gate_open(4, 3))

    def vertex(self, v: Vertex) -> None:
        """Gates read the sum of the children; the forget gate of a child reads that child."""
        xi, xo, xu, xf = ops.split(v.pull("x") @ self.W + self.b, 4)
        child = v.gather()
        i, o, u = ops.split(child.h.sum() @ self.U, 3)
        f = ops.sigmoid(xf + child.h @ self.U_f)  # one row per edge
        c = ops.sigmoid(xi + i) * ops.tanh(xu + u) + (f * child.c).sum()
        h = ops.sigmoid(xo + o) * ops.tanh(c)
        v.scatter(c=c, h=h)
        v.push(h)


class TreeGRU(VertexFunction):
    """Child-sum GRU on trees (Kokkinos and Potamianos 2017), a reset gate for each child."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        self.state = State(h=hidden_size)
        self.W = Parameter((input_size, 3 * hidden_size))
        self.U_r = Parameter((hidden_size, hidden_size))
        self.U_z = Parameter((hidden_size, hidden_size))
        self.U_n = Parameter((hidden_size, hidden_size))
        self.b = Parameter((3 * hidden_size,))

    def vertex(self, v: Vertex) -> None:
        """The gates of GRU, with the sum of the children as the state before."""
        xr, xz, xn = ops.split(v.pull("x") @ self.W + self.b, 3)
        child = v.gather().h
        before = child.sum()
        r = ops.sigmoid(xr + child @ self.U_r)  # one row per edge
        z = ops.sigmoid(xz + before @ self.U_z)
        n = ops.tanh(xn + (r * child).sum() @ self.U_n)
        h = z * before + (1.0 - z) * n
        v.scatter(h=h)
        v.push(h)


class TreeFC(VertexFunction):
    """Fully connected layer on binary trees (Looks et al. 2017): h = tanh(x + [h_l, h_r] W + b).

    ``x`` (hidden_size,) is the input of a leaf and is not multiplied.
    """

    def __init__(self, hidden_size: int) -> None:
        self.state = State(h=hidden_size)
        self.W = Parameter((2 * hidden_size, hidden_size))
        self.b = Parameter((hidden_size,))

    def vertex(self, v: Vertex) -> None:
        """Multiply both children at once."""
        children = ops.concat([v.gather(0).h, v.gather(1).h])
        h = ops.tanh(v.pull("x") + children @ self.W + self.b)
        v.scatter(h=h)
        v.push(h)


class TreeAttention(VertexFunction):
    """Attention of every vertex over its children (Vaswani et al. 2017, on a tree): any number.

    h = tanh(x W + b + sum_k a_k h_k V), a = softmax over the children of q . (h_k K) / sqrt(size).
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        self.hidden_size = hidden_size
        self.state = State(h=hidden_size)
        self.W = Parameter((input_size, 2 * hidden_size))
        self.K = Parameter((hidden_size, hidden_size))
        self.V = Parameter((hidden_size, hidden_size))
        self.b = Parameter((2 * hidden_size,))

    def vertex(self, v: Vertex) -> None:
        """The vertex gives the query, its children give keys and values."""
        own, query = ops.split(v.pull("x") @ self.W + self.b, 2)
        child = v.gather().h
        score = (query * (child @ self.K)).sum(-1) / math.sqrt(self.hidden_size)
        context = (score.softmax() * child).sum()
        h = ops.tanh(own + context @ self.V)
        v.scatter(h=h)
        v.push(h)


class RNTN(VertexFunction):
    """Recursive neural tensor network (Socher et al. 2013): a bilinear form of [h_l, h_r].

    h = tanh(x + p V p + p W + b) with p = [h_l, h_r]; ``x`` (hidden_size,) is the input of a leaf.
    """

    def __init__(self, hidden_size: int) -> None:
        self.state = State(h=hidden_size)
        self.V = Parameter((2 * hidden_size, 2 * hidden_size**2), init="normal")
        self.W = Parameter((2 * hidden_size, hidden_size))
        self.b = Parameter((hidden_size,))

    def vertex(self, v: Vertex) -> None:
        """Slice k of V is the form that gives element k of the product."""
        p = ops.concat([v.gather(0).h, v.gather(1).h])
        h = ops.tanh(v.pull("x") + ops.bilinear(p, self.V, p) + p @ self.W + self.b)
        v.scatter(h=h)
        v.push(h)
