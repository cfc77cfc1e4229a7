"""Facts about parameters on which strategies depend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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

    shape: sizes of its axes. dtype: "float32" or "float64". sparse: only rows that a batch looks up
    have a gradient. rows: of a sparse one, how many different rows a replica touches in a step, as
    far as known. once, twice: how many of these it looks up once, and twice; from them follows how
    many several replicas touch, see `distinct_rows`; None: as if each drew its own evenly. factors:
    how many pairs (u, v) a replica's gradient is the sum of, if it is a matrix product (the rows of
    that product: vertices, not graphs); None if it is none. done: its place in the order in which
    gradients are done; None: see `by_gradient`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    sparse: bool = False
    rows: float | None = None
    once: float | None = None
    twice: float | None = None
    factors: float | None = None
    done: int | None = None

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


def by_gradient(variables: Sequence[Variable]) -> list[Variable]:
    """In the order in which their gradients are done; where nothing is known, the last one first.

    If some are known, the others have no gradient: they come first.
    """
    if all(variable.done is None for variable in variables):
        return list(reversed(variables))
    return sorted(variables, key=lambda v: -1 if v.done is None else v.done)


def in_order(variables: Sequence[Variable], names: Sequence[str]) -> tuple[Variable, ...]:
    """The same; `names` are of those that have a gradient, in the order in which these are done."""
    order = {name: i for i, name in enumerate(names)}
    return tuple(replace(variable, done=order.get(variable.name)) for variable in variables)
