"""What the engine reads of a batch: the features of a program."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.compiler.program import Program
from cavs.passes.merge_vertices import COPIES, PRESENT

Array = NDArray[Any]


def features(
    program: Program,
    source: Any,
    merged: bool,
    dtype: np.dtype[Any],
    rows_of: Callable[[Any, str, np.dtype[Any]], Array],
) -> tuple[list[Array], list[Array]]:
    """The float features of ``program`` as matrices of ``dtype``, and its integer features.

    source: the batch; merged: its distinct vertices instead, see cavs.data.merge. rows_of: gives a
    feature of the source by its name, see `EdgeTypes.rows`.
    """

    def feature(name: str, dtype: np.dtype[Any]) -> Array:
        if not merged:
            return rows_of(source, name, dtype)
        # Rows of distinct vertices are gathered once a batch, not in every step.
        key = name, dtype.str
        if key not in source.rows:
            source.rows[key] = _of_distinct(source, name, dtype, rows_of)
        found: Array = source.rows[key]
        return found

    floats = [feature(name, dtype) for name in program.float_features]
    rows = [x.reshape(len(x), math.prod(x.shape[1:])) for x in floats]
    return rows, [feature(name, np.dtype(np.int32)) for name in program.int_features]


def _of_distinct(
    source: Any,
    name: str,
    dtype: np.dtype[Any],
    rows_of: Callable[[Any, str, np.dtype[Any]], Array],
) -> Array:
    if not name.startswith((COPIES, PRESENT)):
        return rows_of(source, name, dtype)
    copies: Array = source.copies  # merge_vertices asks for them
    if name != COPIES:
        counted = name.removeprefix(PRESENT)
        present = rows_of(source, counted, np.dtype(np.int32)) >= 0
        copies = source.copies_of(counted) * present
    return copies.astype(dtype)
