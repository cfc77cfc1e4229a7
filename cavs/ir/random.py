"""Reference of the engine's counter-based random numbers (csrc/kernels/isa_uniform.h)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK = 0xFFFFFFFF


def _mix(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D & _MASK
    x ^= x >> 15
    x = x * 0x846CA68B & _MASK
    return x ^ x >> 16


def uniform(seed: int, step: int, stream: int, row: int, width: int) -> npt.NDArray[np.float64]:
    """Return ``width`` numbers in [0, 1) with 24 random bits, a function of their position."""
    key = 0
    for word in (seed & _MASK, seed >> 32, step & _MASK, step >> 32, stream, row):
        key = _mix(((key ^ word) + 0x9E3779B9) & _MASK)
    salt = _mix((key + 0x85EBCA6B) & _MASK)
    bits = [_mix((_mix(key ^ column) + salt) & _MASK) >> 8 for column in range(width)]
    return np.array(bits, dtype=np.float64) * 2.0**-24
