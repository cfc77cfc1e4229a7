"""Low-rank gradients by one step of subspace iteration (PowerSGD, Vogels et al. 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cavs.distributed.comm.interfaces import Array
from cavs.distributed.compression.exchange import (
    Compressor,
    Exchange,
    Reduced,
    Reduction,
    Round,
    Shape,
    State,
)

_CHUNK = 1 << 15  # elements


@dataclass(frozen=True)
class PowerSGD(Compressor):
    """The summed gradient as a product of two narrow matrices, with error feedback.

    A gradient is read as a matrix: its first axis by all others. Vectors, and matrices that two
    factors of `rank` columns would not make smaller, are sent as they are. The right factor of one
    step starts the next.
    """

    rank: int = 1
    name: ClassVar[str] = "powersgd"

    def _columns(self, shape: Shape) -> int:
        """Return the columns of the factors; 0 where the gradient is sent as it is."""
        if len(shape) < 2:
            return 0
        rows, columns = shape[0], math.prod(shape[1:])
        used = min(self.rank, rows, columns)
        return used if used * (rows + columns) < rows * columns else 0

    def start(self, shape: Shape, dtype: Any, *, seed: int = 0) -> State:
        used = self._columns(shape)
        if not used:
            return {}
        drawn = np.random.default_rng(seed).standard_normal((math.prod(shape[1:]), used))
        return {"error": np.zeros(shape, dtype), "right": drawn.astype(dtype)}

    def reduce(self, gradient: Array, state: State, rank: int, ranks: int) -> Reduction:
        if not state:
            total = yield Exchange("all_reduce", (gradient,))
            return Reduced(total, gradient, state)
        matrix = (gradient + state["error"]).reshape(gradient.shape[0], -1)
        left = yield Exchange("all_reduce", (matrix @ state["right"],))
        left = orthonormal(left)
        right = yield Exchange("all_reduce", (matrix.T @ left,))
        total = product(left, right).reshape(gradient.shape)
        # Every rank's share of the result is an equal one, so the errors of all ranks add up to
        # what the result lacks.
        sent = total / ranks
        error = matrix.reshape(gradient.shape) - sent
        error[~np.isfinite(error)] = 0
        usable = bool(np.isfinite(right).all() and right.any())
        kept = right if usable else state["right"]
        return Reduced(total, sent, {"error": error, "right": kept})

    def rounds(self, shape: Shape, itemsize: int, ranks: int, step: int) -> tuple[Round, ...]:
        used = self._columns(shape)
        if not used:
            return (Round("all_reduce", math.prod(shape) * itemsize),)
        sides = shape[0], math.prod(shape[1:])
        return tuple(Round("all_reduce", side * used * itemsize) for side in sides)

    def __str__(self) -> str:
        return f"powersgd(rank={self.rank})"


def product(left: Array, right: Array) -> Array:
    """Return ``left @ right.T`` of narrow matrices, term by term, in chunks of a cache's size.

    Not by BLAS, which rounds otherwise on another processor: all ranks must find the same.
    """
    columns = np.ascontiguousarray(right.T)
    total = np.empty((len(left), len(right)), left.dtype)
    chunk = max(1, _CHUNK // len(right))
    term = np.empty((min(chunk, len(left)), len(right)), left.dtype)
    for begin in range(0, len(left), chunk):
        rows, part = left[begin : begin + chunk], total[begin : begin + chunk]
        np.multiply(rows[:, :1], columns[0], out=part)
        for i in range(1, left.shape[1]):
            part += np.multiply(rows[:, i : i + 1], columns[i], out=term[: len(rows)])
    return total


def orthonormal(matrix: Array) -> Array:
    """Return orthonormal columns that span those of `matrix`; zeros for dependent ones.

    Gram-Schmidt, each column twice, in NumPy's own loops: a QR of LAPACK may differ between two
    machines, and all ranks must find the same.
    """
    result = matrix.copy()
    scale = np.abs(result).max(initial=0.0)
    tiny = np.finfo(result.dtype).eps * 16
    if not np.isfinite(scale) or scale == 0:
        return np.zeros_like(result) if scale == 0 else result
    result /= scale
    for i in range(result.shape[1]):
        column = result[:, i]
        before = math.sqrt(float((column * column).sum()))
        for _ in range(2):
            for j in range(i):
                column -= (result[:, j] * column).sum() * result[:, j]
        length = math.sqrt(float((column * column).sum()))
        if length <= tiny * max(before, 1.0):
            column[...] = 0
        else:
            column /= length
    return result
