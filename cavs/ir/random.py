"""Reference of the counter-based random numbers of the engine."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def uniform(seed: int, step: int, stream: int, row: int, width: int) -> npt.NDArray[np.float64]:
    """``width`` numbers in [0, 1) with 24 random bits, as csrc/kernels makes them."""
    raise NotImplementedError
