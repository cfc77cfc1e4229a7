"""Compressors that quantise each number by itself, and the error feedback that one bit needs."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cavs.distributed.comm.interfaces import Array
from cavs.distributed.comm.messages import even_counts, offsets
from cavs.distributed.compression.exchange import (
    Compressor,
    Exchange,
    Reduced,
    Reduction,
    Round,
    Shape,
    State,
)

_INNER = "inner."  # prefix of the state of the compressor that error feedback is added to


@dataclass(frozen=True)
class Identity(Compressor):
    """No compression: the gradient is sent as it is."""

    name: ClassVar[str] = "none"

    def reduce(self, gradient: Array, state: State, rank: int, ranks: int) -> Reduction:
        total = yield Exchange("all_reduce", (gradient,))
        return Reduced(total, gradient, state)

    def rounds(self, shape: Shape, itemsize: int, ranks: int, step: int) -> tuple[Round, ...]:
        return (Round("all_reduce", math.prod(shape) * itemsize),)


class _Cast(Compressor):
    """Two bytes a number on the wire, sums in the gradient's own precision.

    Every rank sums one part: the ranks send it their parts, it rounds the sum once and sends it to
    all. Adding numbers of few bits one after the other would lose small terms of a large sum, and
    could overflow on the way. A rank's rounding of the sum counts as sent by that rank.
    """

    @abstractmethod
    def encode(self, values: Array) -> Array:
        """Return numbers as they are sent, two bytes each."""

    @abstractmethod
    def decode(self, coded: Array, dtype: Any) -> Array:
        """Return the numbers that were encoded, rounded."""

    def reduce(self, gradient: Array, state: State, rank: int, ranks: int) -> Reduction:
        dtype, flat = gradient.dtype, gradient.reshape(-1)
        coded, cuts = self.encode(flat), offsets(even_counts(flat.size, ranks))
        received = yield Exchange("all_to_all", tuple(coded[a:b] for a, b in cuts))
        total = np.zeros(received[rank].shape, dtype)
        for part in received:
            total += self.decode(part, dtype)
        rounded = self.encode(total)
        gathered = yield Exchange("all_gather", (rounded,))
        sent = self.decode(coded, dtype)
        mine = slice(*cuts[rank])
        with np.errstate(invalid="ignore"):  # inf - inf: the step is refused by its loss or norm
            sent[mine] += self.decode(rounded, dtype) - total
        result = self.decode(np.concatenate(gathered), dtype)
        return Reduced(result.reshape(gradient.shape), sent.reshape(gradient.shape), state)

    def rounds(self, shape: Shape, itemsize: int, ranks: int, step: int) -> tuple[Round, ...]:
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
        bits: Array = single.view(np.uint32)
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        limit = np.uint32(0x7F7F)  # a finite number never becomes infinite
        sign = (bits >> 16) & 0x8000
        rounded = np.where((rounded & 0x7FFF) > limit, sign | limit, rounded)
        special = (bits >> 16) | np.where(np.isnan(single), np.uint32(1), np.uint32(0))
        return np.where(np.isfinite(single), rounded, special).astype(np.uint16)

    def decode(self, coded: Array, dtype: Any) -> Array:
        return (coded.astype(np.uint32) << 16).view(np.float32).astype(dtype)


@dataclass(frozen=True)
class ErrorFeedback(Compressor):
    """The part that one step did not send is added to the gradient of the next (Seide et al. 2014).

    Over many steps the sum of what was sent is the sum of the gradients, but for the last error.
    """

    inner: Compressor
    name: ClassVar[str] = "error_feedback"

    def start(self, shape: Shape, dtype: Any, *, seed: int = 0) -> State:
        inner = self.inner.start(shape, dtype, seed=seed)
        return {"error": np.zeros(shape, dtype)} | {_INNER + k: v for k, v in inner.items()}

    def reduce(self, gradient: Array, state: State, rank: int, ranks: int) -> Reduction:
        corrected = gradient + state["error"]
        inner = {k.removeprefix(_INNER): v for k, v in state.items() if k.startswith(_INNER)}
        reduced = yield from self.inner.reduce(corrected, inner, rank, ranks)
        with np.errstate(invalid="ignore"):
            error = corrected - reduced.sent
        # An infinite gradient ends the step elsewhere; it must not stay in the error for ever.
        error[~np.isfinite(error)] = 0
        after = {"error": error} | {_INNER + k: v for k, v in reduced.state.items()}
        return Reduced(reduced.total, reduced.sent, after)

    def rounds(self, shape: Shape, itemsize: int, ranks: int, step: int) -> tuple[Round, ...]:
        return self.inner.rounds(shape, itemsize, ranks, step)

    def __str__(self) -> str:
        return str(self.inner) if self.inner.name == "onebit" else f"error_feedback({self.inner})"


@dataclass(frozen=True)
class OneBit(Compressor):
    """The sign of every number, and for each sign the mean of its numbers (Seide et al. 2014).

    Written ``onebit``, it always has error feedback: alone it does not converge.
    """

    name: ClassVar[str] = "onebit"

    def reduce(self, gradient: Array, state: State, rank: int, ranks: int) -> Reduction:
        dtype, flat = gradient.dtype, gradient.reshape(-1)
        positive = flat >= 0
        means = np.array([_mean(flat[~positive]), _mean(flat[positive])], np.float32)
        payload = np.concatenate([means.view(np.uint8), np.packbits(positive)])
        gathered = yield Exchange("all_gather", (payload,))
        total = np.zeros(flat.shape, dtype)
        for coded in gathered:
            total += _signs(coded, flat.size, dtype)
        sent = _signs(payload, flat.size, dtype)
        return Reduced(total.reshape(gradient.shape), sent.reshape(gradient.shape), state)

    def rounds(self, shape: Shape, itemsize: int, ranks: int, step: int) -> tuple[Round, ...]:
        return (Round("all_gather", 8 + math.ceil(math.prod(shape) / 8)),)


def _mean(values: Array) -> float:
    return float(values.mean()) if values.size else 0.0


def _signs(payload: Array, size: int, dtype: Any) -> Array:
    negative, positive = payload[:8].copy().view(np.float32)
    bits = np.unpackbits(payload[8:], count=size).astype(bool)
    signs: Array = np.where(bits, positive, negative).astype(dtype)
    return signs
