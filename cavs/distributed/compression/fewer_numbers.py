"""Compressors that send fewer numbers, the others later: low rank, or the largest alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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

_CHUNK = 1 << 15  # elements of a product that are computed together
_INDEX_BYTES = 4
_WARM_UP_RATIO = 0.25


@dataclass(frozen=True)
class PowerSGD(Compressor):
    """The summed gradient as a product of two narrow matrices (PowerSGD, Vogels et al. 2019).

    One step of subspace iteration, with error feedback. A gradient is read as a matrix: its first
    axis by all others. Vectors, and matrices that two factors of `rank` columns would not make
    smaller, are sent as they are. The right factor of one step starts the next.
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


@dataclass(frozen=True)
class TopK(Compressor):
    """The `ratio` numbers of largest magnitude of what has gathered up since they were last sent.

    After Deep Gradient Compression (Lin et al. 2018).
    momentum: of the local accumulation (momentum correction); what comes out then already has
    momentum, and the optimiser must be plain SGD. Where a number is sent, its momentum is forgotten
    too (factor masking). clip: of the norm of the total of N ranks, in which each may have a part
    of norm clip / sqrt(N): what is longer is cut before it gathers up. So independent gradients
    total to about `clip`, aligned ones to clip * sqrt(N); 0 is none. Where the total is then
    divided by N, the limits hold of the mean (`averaged`). warm_up: over so many steps the ratio
    goes down from 1/4, each step by the same factor.
    """

    ratio: float = 0.01
    momentum: float = 0.0
    clip: float = 0.0
    warm_up: int = 0
    name: ClassVar[str] = "topk"

    def count(self, size: int, step: int) -> int:
        """Return how many of `size` numbers are sent at `step`, at least one."""
        ratio = self.ratio
        if step < self.warm_up and ratio < _WARM_UP_RATIO:
            ratio = _WARM_UP_RATIO * (ratio / _WARM_UP_RATIO) ** (step / self.warm_up)
        return min(size, max(1, math.ceil(ratio * size)))

    def averaged(self, ranks: int) -> Compressor:
        return replace(self, clip=self.clip * ranks)

    def start(self, shape: Shape, dtype: Any, *, seed: int = 0) -> State:
        return {"step": 0, "velocity": np.zeros(shape, dtype), "unsent": np.zeros(shape, dtype)}

    def reduce(self, gradient: Array, state: State, rank: int, ranks: int) -> Reduction:
        shape, dtype = gradient.shape, gradient.dtype
        velocity = self.momentum * state["velocity"].reshape(-1)
        velocity += self._clipped(gradient.reshape(-1), ranks)
        unsent = state["unsent"].reshape(-1) + velocity
        finite = np.isfinite(unsent)
        # Values that are not finite are sent first, so that the step is refused, and not kept.
        magnitude = np.where(finite, np.abs(unsent), np.inf)
        chosen = _largest(magnitude, self.count(unsent.size, state["step"]))
        values = unsent[chosen]
        payload = np.concatenate([chosen.view(np.uint8), values.view(np.uint8)])
        gathered = yield Exchange("all_gather", (payload,))
        total = np.zeros(unsent.shape, dtype)
        for coded in gathered:
            count = coded.size // (_INDEX_BYTES + values.itemsize)
            index, part = np.split(coded, [count * _INDEX_BYTES])
            total[index.copy().view(np.int32)] += part.copy().view(dtype)
        sent = np.zeros(unsent.shape, dtype)
        sent[chosen] = values
        for kept in (velocity, unsent):
            kept[chosen] = 0
            kept[~finite] = 0
        after: State = {
            "step": state["step"] + 1,
            "velocity": velocity.reshape(shape),
            "unsent": unsent.reshape(shape),
        }
        return Reduced(total.reshape(shape), sent.reshape(shape), after)

    def _clipped(self, flat: Array, ranks: int) -> Array:
        if not self.clip:
            return flat
        norm = math.sqrt(float((flat.astype(np.float64) ** 2).sum()))
        limit = self.clip / math.sqrt(ranks)
        return flat * flat.dtype.type(limit / norm) if norm > limit else flat

    def rounds(self, shape: Shape, itemsize: int, ranks: int, step: int) -> tuple[Round, ...]:
        count = self.count(math.prod(shape), step)
        return (Round("all_gather", count * (_INDEX_BYTES + itemsize)),)

    def __str__(self) -> str:
        return (
            f"topk(ratio={self.ratio:g}, momentum={self.momentum:g}, clip={self.clip:g}, "
            f"warm_up={self.warm_up})"
        )


def _largest(magnitude: Array, count: int) -> Array:
    """Return the indices of the `count` largest, int32, rising; of equal ones the first."""
    if count == magnitude.size:
        return np.arange(count, dtype=np.int32)
    # Smallest of the negative ones: NumPy takes long for the largest where nearly all are zero.
    least = -np.partition(-magnitude, count - 1)[count - 1]
    chosen = magnitude > least
    equal = np.flatnonzero(magnitude == least)
    chosen[equal[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen).astype(np.int32)
