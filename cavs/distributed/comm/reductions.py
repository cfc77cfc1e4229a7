"""Reductions of arrays over ranks: sum, min, max and mean."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.errors import ConfigError

OPS = ("sum", "min", "max", "mean")
_COMBINE: dict[str, np.ufunc] = {
    "sum": np.add,
    "mean": np.add,
    "min": np.minimum,
    "max": np.maximum,
}


def check_op(op: str, dtype: str) -> int:
    """Return the number of a reduction; ConfigError if there is none of arrays of `dtype`."""
    if op not in OPS:
        raise ConfigError(f"there is no reduction {op!r}", hint=f"use one of {', '.join(OPS)}")
    if op == "mean" and "float" not in dtype:
        raise ConfigError(
            f"the mean of arrays of {dtype} is no {dtype}",
            hint='reduce with op="sum" and divide, or cast the array to float64',
        )
    return OPS.index(op)


def combine(op: str, one: NDArray[Any], other: NDArray[Any], out: NDArray[Any]) -> None:
    """Reduce two arrays into `out`; a mean is a sum until `complete`. NaN stays NaN."""
    _COMBINE[op](one, other, out=out)


def complete(op: str, total: NDArray[Any], ranks: int) -> None:
    """Divide a mean of so many ranks, in place."""
    if op == "mean":
        np.divide(total, ranks, out=total)
