"""Inputs of the engine: features of a program, and the state that updates its parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs._engine import Schedule
from cavs.compiler.program import Program
from cavs.errors import ConfigError
from cavs.frontend.parameter import Parameter
from cavs.passes.merge_vertices import COPIES, PRESENT

Array = NDArray[Any]


def features(
    program: Program,
    source: Any,
    merged: bool,
    dtype: np.dtype[Any],
    rows_of: Callable[[Any, str, np.dtype[Any]], Array],
) -> tuple[list[Array], list[Array]]:
    """Return the float features of ``program`` as matrices of ``dtype``, and its integer features.

    source: the batch; merged: its distinct vertices instead, see cavs.data.merge. rows_of: returns
    a feature of the source by its name, see `EdgeTypes.rows`.
    """

    def feature(name: str, dtype: np.dtype[Any]) -> Array:
        if not merged:
            return rows_of(source, name, dtype)
        # Rows of distinct vertices are gathered once per batch, not in every step.
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
    copies: Array = source.copies  # read by merge_vertices
    if name != COPIES:
        counted = name.removeprefix(PRESENT)
        present = rows_of(source, counted, np.dtype(np.int32)) >= 0
        copies = source.copies_of(counted) * present
    return copies.astype(dtype)


def schedule_of(optional: tuple[str, ...], source: Any, on_device: bool) -> Schedule:
    """Return the schedule of a batch, or of its distinct vertices.

    On devices siblings are neighbours: the children of complete trees are then rows of a matrix,
    and are not gathered.
    """
    found: Schedule = source.schedule(optional, by_number=not on_device)
    return found


def update_of(
    parameters: Collection[Parameter], states: Sequence[Sequence[Array]]
) -> tuple[list[list[Array]], list[bool]]:
    """Return the optimiser's arrays for each parameter, and which are trained, for the engine.

    For a model without parameters the engine has one that nothing reads. ConfigError unless there
    are states for each parameter.
    """
    if len(states) != len(parameters):
        raise ConfigError(
            f"states of {len(states)} parameters, the model has {len(parameters)}",
            hint="give a list of arrays for each of model.parameters(), an empty one for kind='sgd'"
            "; optimizer.init_states(list(model.parameters().values())) returns them",
        )
    if not parameters:
        return [[]], [False]
    return [list(s) for s in states], [p.trainable for p in parameters]
