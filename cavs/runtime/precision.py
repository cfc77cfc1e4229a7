"""Precisions of products on the CPU and on devices."""

from __future__ import annotations

import numpy as np

from cavs import _engine
from cavs.config import require
from cavs.cuda.engine import PRECISIONS as OF_DEVICES

# Exact products; products of integers with shared scales; three products of numbers that are split
# into two bfloat16; one product of numbers rounded to bfloat16.
OF_THE_CPU = ("float32", "int16", "bfloat16x3", "bfloat16")
PRECISIONS = tuple(dict.fromkeys(OF_THE_CPU + OF_DEVICES))


def require_precision(precision: object, on_cpu: bool, dtype: np.dtype[np.generic]) -> None:
    """ConfigError unless ``precision`` exists there for products of ``dtype``."""
    known = ", ".join(PRECISIONS)
    require(
        isinstance(precision, str) and precision in PRECISIONS,
        "precision",
        precision,
        f"one of {known}",
    )
    there, where = (OF_THE_CPU, "the CPU") if on_cpu else (OF_DEVICES, "a device")
    require(precision in there, "precision", precision, f"one of {', '.join(there)} on {where}")
    if precision != "float32":
        require(dtype == np.float32, "precision", precision, "'float32' for float64")


def products_of(precision: str) -> str:
    """Return the CPU's way to compute products of ``precision``: exactly where that is faster."""
    if precision not in OF_THE_CPU or _engine.isa(precision) == _engine.isa():
        return "float32"
    return precision
