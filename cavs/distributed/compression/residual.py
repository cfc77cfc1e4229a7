"""Error feedback, and one bit a number, which does not work without."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

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
class ErrorFeedback(Compressor):
    """The part that one step did not send is added to the gradient of the next (Seide et al. 2014).

    Over many steps the sum of what was sent is the sum of the gradients, but for the last error.
    """

    inner: Compressor
    name: ClassVar[str] = "error_feedback"

    def start(self, shape: tuple[int, ...], dtype: Any, *, seed: int = 0) -> State:
        inner = self.inner.start(shape, dtype, seed=seed)
        return {"error": np.zeros(shape, dtype), "inner": inner}

    def reduce(self, gradient: Array, state: State, rank: int, ranks: int) -> Reduction:
        corrected = gradient + state["error"]
        reduced = yield from self.inner.reduce(corrected, state["inner"], rank, ranks)
        with np.errstate(invalid="ignore"):
            error = corrected - reduced.sent
        # An infinite gradient ends the step elsewhere; it must not stay in the error for ever.
        error[~np.isfinite(error)] = 0
        return Reduced(reduced.total, reduced.sent, {"error": error, "inner": reduced.state})

    def rounds(
        self, shape: tuple[int, ...], itemsize: int, ranks: int, step: int
    ) -> tuple[Round, ...]:
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

    def rounds(
        self, shape: tuple[int, ...], itemsize: int, ranks: int, step: int
    ) -> tuple[Round, ...]:
        return (Round("all_gather", 8 + math.ceil(math.prod(shape) / 8)),)


def _mean(values: Array) -> float:
    return float(values.mean()) if values.size else 0.0


def _signs(payload: Array, size: int, dtype: Any) -> Array:
    negative, positive = payload[:8].copy().view(np.float32)
    bits = np.unpackbits(payload[8:], count=size).astype(bool)
    signs: Array = np.where(bits, positive, negative).astype(dtype)
    return signs
