"""Layers to use around vertex functions, and the vertex functions of the literature."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cavs import ops
from cavs.config import require_number
from cavs.data.readers.vectors import WordVectors
from cavs.frontend.parameter import Initializer, Module, Parameter
from cavs.ir import Node, apply, as_node
from cavs.nn.cells import (
    GRU,
    LSTM,
    RNTN,
    BinaryTreeLSTM,
    ChildSumTreeLSTM,
    TreeAttention,
    TreeFC,
    TreeGRU,
)
from cavs.nn.stacks import Bidirectional, Stacked
from cavs.ops.leaves import lookup
from cavs.ops.random import check_rate


class Embedding(Module):
    """A table of ``num_rows`` x ``width``; an index of -1 gives zeros.

    init: as for a `Parameter`, or the result of `cavs.data.read_vectors`.
    sparse: only rows that a batch looks up are updated; otherwise every step updates all of them,
    with decay and momentum, which takes time in proportion to the table.
    """

    def __init__(
        self, num_rows: int, width: int, init: Initializer = "uniform", *, sparse: bool = True
    ) -> None:
        if isinstance(init, WordVectors):
            init.check_shape((num_rows, width))
        self.weight = Parameter((num_rows, width), init=init, sparse=sparse)

    def __call__(self, index: Any) -> Node:
        """Return rows (width,) of ``index``, integers of any domain; (k, width) of k columns."""
        return lookup(self.weight, index)


def _fan_in(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    limit = 1.0 / math.sqrt(shape[0])
    return rng.uniform(-limit, limit, shape)


class Linear(Module):
    """x @ W + b, W of shape (in_size, out_size)."""

    def __init__(self, in_size: int, out_size: int, bias: bool = True) -> None:
        self.weight = Parameter((in_size, out_size), init=_fan_in)
        self.bias = Parameter((out_size,), init="zeros") if bias else None

    def __call__(self, x: Any) -> Node:
        """Return rows (out_size,) of rows ``x`` (in_size,)."""
        y = as_node(x) @ self.weight
        return y if self.bias is None else y + self.bias


class LayerNorm(Module):
    """Zero mean and unit variance over the last axis, then scale and shift (Ba et al. 2016)."""

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        self.scale = Parameter((size,), init="ones")
        self.shift = Parameter((size,), init="zeros")
        # Rows of zeros, such as those of vertices without an input, have no variance.
        require_number("eps", eps, "a number above 0", lambda x: x > 0)
        self.eps = eps

    def __call__(self, x: Any) -> Node:
        """Return ``x``, rows (size,), normalised."""
        node = as_node(x)
        centred = node - apply("keep_axis", node.mean(-1))
        variance = (centred * centred).mean(-1)
        deviation = apply("keep_axis", ops.sqrt(variance + self.eps))
        return centred / deviation * self.scale + self.shift


class Dropout(Module):
    """Set elements to zero with probability ``rate`` in training, and scale the others up."""

    def __init__(self, rate: float) -> None:
        check_rate(rate)
        self.rate = rate

    def __call__(self, x: Any) -> Node:
        """Return ``x``, of any shape, with elements dropped."""
        return ops.dropout(x, self.rate)


__all__ = [
    "GRU",
    "LSTM",
    "RNTN",
    "Bidirectional",
    "BinaryTreeLSTM",
    "ChildSumTreeLSTM",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "Linear",
    "Stacked",
    "TreeAttention",
    "TreeFC",
    "TreeGRU",
]
