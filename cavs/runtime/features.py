"""Features of a batch, as the engine takes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from cavs.compiler.program import Program
from cavs.data.features import split_name
from cavs.errors import FeatureError
from cavs.frontend.model import Model
from cavs.passes.merge_vertices import COPIES, PRESENT
from cavs.runtime.interface import Array, BatchLike


class _EdgeFeature(NamedTuple):
    """The entry of ``feature_schema`` for a feature of edges."""

    domain: str
    dtype: str
    shape: tuple[int, ...]
    has_absent: bool


class EdgeTypes:
    """Types of edge features, learnt from batches that have edges: empty arrays have none.

    The model stores them, for other sessions and for checkpoints.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    def schema(self, batch: BatchLike) -> Mapping[str, Any]:
        """Return the type of every feature of ``batch``; without edges, edge features as learnt."""
        schema, known = batch.feature_schema(), self._model._edge_types
        if batch.topology.num_edges == 0:
            others = {n: s for n, s in schema.items() if s.domain != "edge"}
            of_edges = {n: _EdgeFeature("edge", *known[n], False) for n in known}
            return {**schema, **of_edges, **others}
        self._learn({n: (s.dtype, tuple(s.shape)) for n, s in schema.items() if s.domain == "edge"})
        return schema

    def learn(self, features: Mapping[str, Array]) -> None:
        """Learn types of edge features of other ranks, unless a batch has shown them."""
        new = {n: a for n, a in features.items() if n not in self._model._edge_types}
        kinds = {n: "int" if a.dtype.kind == "i" else "float" for n, a in new.items()}
        self._learn({n: (kinds[n], a.shape[1:]) for n, a in new.items()})

    def _learn(self, found: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        known = self._model._edge_types
        if found.items() - known.items():
            self._model._edge_types = {**known, **found}

    def rows(self, source: Any, name: str, dtype: np.dtype[Any]) -> Array:
        """Return a feature for the engine; without edges, also one that ``source`` lacks."""
        whole, column = split_name(name)
        if column is not None:
            return np.ascontiguousarray(self.rows(source, whole, dtype)[:, column])
        known = self._model._edge_types
        if name in known and source.topology.num_edges == 0:
            try:  # other data may have a feature of vertices by the same name
                found = source[name]
            except FeatureError:
                found = ()
            if len(found) == 0:
                return np.zeros((0, *known[name][1]), dtype)
        return np.ascontiguousarray(source[name], dtype=dtype)


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
