"""Facts about parameters on which strategies depend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cavs.frontend.parameter import Module


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One trained parameter.

    shape: sizes of its axes. dtype: "float32" or "float64". sparse: only rows that a batch looks up
    have a gradient. rows: number of different rows of a sparse one that a replica touches in a
    step, as far as known. once, twice: numbers of those that it looks up once, and twice; from them
    follows how many several replicas touch (`distinct_rows`); None: as if each drew its own evenly.
    factors: number of pairs (u, v) whose products a replica's gradient is the sum of (vertices, not
    graphs); None if it is no matrix product. done: its position in the order in which gradients are
    done; None: see `by_gradient`.
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
        """Number of elements."""
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
    model: Module,
    *,
    dtype: str = "float32",
    rows: Mapping[str, float] | None = None,
    factors: Mapping[str, float] | None = None,
) -> tuple[Variable, ...]:
    """Return the trainable parameters of `model` in its order.

    rows, factors: those known, by name; see `Variable`.
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
    """Return them in the order in which their gradients are done; the last one first if unknown.

    If some are known, the others have no gradient: they come first.
    """
    if all(variable.done is None for variable in variables):
        return list(reversed(variables))
    return sorted(variables, key=lambda v: -1 if v.done is None else v.done)


def in_order(variables: Sequence[Variable], names: Sequence[str]) -> tuple[Variable, ...]:
    """Return them with their `done`; `names`: those that have a gradient, in that order."""
    order = {name: i for i, name in enumerate(names)}
    return tuple(replace(variable, done=order.get(variable.name)) for variable in variables)
