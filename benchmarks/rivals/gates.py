"""The order of gates in a parameter. Without PyTorch, which not every rival has."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def permute_gates(array: npt.NDArray[Any], order: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return blocks of columns in another order: block i is block order[i] of `array`."""
    blocks = np.split(array, len(order), axis=-1)
    return np.concatenate([blocks[i] for i in order], axis=-1)


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(i) for i in range(len(order)))
