"""What a strategy must know of a parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class _Parameter(Protocol):
    shape: tuple[int, ...]
    trainable: bool
    sparse: bool


class _Module(Protocol):
    def parameters(self) -> Mapping[str, _Parameter]: ...


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One trained parameter.

    shape: sizes of its axes. dtype: "float32" or "float64". sparse: only rows that a batch looks
    up have a gradient. rows: of a sparse one, how many different rows a replica touches in a step,
    as far as known. factors: how many pairs (u, v) a replica's gradient is the sum of, if it is a
    matrix product (the rows of that product: vertices, not graphs); None if it is none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    sparse: bool = False
    rows: float | None = None
    factors: float | None = None

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole parameter."""
        return self.size * self.itemsize


def variables_of(
    model: _Module,
    *,
    dtype: str = "float32",
    rows: Mapping[str, float] | None = None,
    factors: Mapping[str, float] | None = None,
) -> tuple[Variable, ...]:
    """The trainable parameters of `model` in its order.

    rows, factors: what is known of them, by name; see `Variable`.
    """
    return tuple(
        Variable(
            name=name,
            shape=tuple(p.shape),
            dtype=dtype,
            sparse=p.sparse,
            rows=(rows or {}).get(name),
            factors=(factors or {}).get(name),
        )
        for name, p in model.parameters().items()
        if p.trainable
    )
