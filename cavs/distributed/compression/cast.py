"""No compression, and fewer bits a number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.compression.exchange import (
    Array,
    Compressor,
    Exchange,
    Reduced,
    Reduction,
    Round,
    State,
)


@dataclass(frozen=True)
class Identity(Compressor):
    """The gradient as it is."""

    name: ClassVar[str] = "none"
    lossless: ClassVar[bool] = True

    def reduce(self, gradient: Array, state: State, rank: int, ranks: int) -> Reduction:
        total = yield Exchange("all_reduce", (gradient,))
        return Reduced(total, gradient, state)

    def rounds(
        self, shape: tuple[int, ...], itemsize: int, ranks: int, step: int
    ) -> tuple[Round, ...]:
        return (Round("all_reduce", math.prod(shape) * itemsize),)


def part_offsets(size: int, ranks: int) -> list[int]:
    """Where the part of every rank begins, and the end; parts differ by at most one element."""
    least, more = divmod(size, ranks)
    return [least * i + min(i, more) for i in range(ranks + 1)]


class _Cast(Compressor):
    """Two bytes a number on the wire, sums in the gradient's own precision.

    Every rank sums one part: the ranks send it their parts, it rounds the sum once and sends it to
    all. Adding numbers of few bits one after the other would lose small terms of a large sum, and
    could overflow on the way. A rank's rounding of the sum counts as sent by that rank.
    """

    def encode(self, values: Array) -> Array:
        """The numbers on the wire, two bytes each."""
        raise NotImplementedError

    def decode(self, coded: Array, dtype: Any) -> Array:
        """The numbers again."""
        raise NotImplementedError

    def reduce(self, gradient: Array, state: State, rank: int, ranks: int) -> Reduction:
        dtype, flat = gradient.dtype, gradient.reshape(-1)
        offsets = part_offsets(flat.size, ranks)
        coded = self.encode(flat)
        parts = tuple(coded[a:b] for a, b in pairwise(offsets))
        received = yield Exchange("all_to_all", parts)
        total = np.zeros(received[rank].shape, dtype)
        for part in received:
            total += self.decode(part, dtype)
        rounded = self.encode(total)
        gathered = yield Exchange("all_gather", (rounded,))
        sent = self.decode(coded, dtype)
        mine = slice(offsets[rank], offsets[rank + 1])
        with np.errstate(invalid="ignore"):  # inf - inf: the step is refused by its loss or norm
            sent[mine] += self.decode(rounded, dtype) - total
        result = self.decode(np.concatenate(gathered), dtype)
        return Reduced(result.reshape(gradient.shape), sent.reshape(gradient.shape), state)

    def rounds(
        self, shape: tuple[int, ...], itemsize: int, ranks: int, step: int
    ) -> tuple[Round, ...]:
        nbytes = 2 * math.prod(shape)
        return (Round("all_to_all", nbytes), Round("all_gather", nbytes / ranks))


@dataclass(frozen=True)
class Float16(_Cast):
    """IEEE half precision: 11 bits, up to 65504; finite numbers beyond are cut to that."""

    name: ClassVar[str] = "float16"

    def encode(self, values: Array) -> Array:
        limit = float(np.finfo(np.float16).max)
        cut = np.where(np.isfinite(values), np.clip(values, -limit, limit), values)
        coded: Array = cut.astype(np.float16)
        return coded

    def decode(self, coded: Array, dtype: Any) -> Array:
        return coded.astype(dtype)


@dataclass(frozen=True)
class BFloat16(_Cast):
    """The upper half of a float32: 8 bits, the range of float32. Rounds to the nearest even."""

    name: ClassVar[str] = "bfloat16"

    def encode(self, values: Array) -> Array:
        single = values.astype(np.float32)
        bits: NDArray[np.uint32] = single.view(np.uint32)
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        limit = np.uint32(0x7F7F)  # a finite number never becomes infinite
        sign = (bits >> 16) & 0x8000
        rounded = np.where((rounded & 0x7FFF) > limit, sign | limit, rounded)
        special = (bits >> 16) | np.where(np.isnan(single), np.uint32(1), np.uint32(0))
        return np.where(np.isfinite(single), rounded, special).astype(np.uint16)

    def decode(self, coded: Array, dtype: Any) -> Array:
        return (coded.astype(np.uint32) << 16).view(np.float32).astype(dtype)
