"""Features of a batch, as the engine takes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from cavs.compiler.program import Program
from cavs.data.features import FeatureSpec, feature_name, owner_of, spec_of, split_name
from cavs.errors import FeatureError
from cavs.frontend.model import Model
from cavs.passes.merge_vertices import COPIES, PRESENT
from cavs.runtime.interface import Array, BatchLike

_PAIRS = "#pairs"  # in place of the type of vertices, for features of pairs


class FeatureTypes:
    """Types of features that a batch may have no row of: empty arrays have none.

    They are features of edges, of pairs and of types of vertices, and learnt from batches that have
    some. The model stores them, for other sessions and for checkpoints.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    def schema(self, batch: BatchLike) -> Mapping[str, Any]:
        """Return the type of every feature of ``batch``; as learnt, where it has no row of it."""
        schema, types = batch.feature_schema(), batch.type_names
        if types is None and batch.structures is None and batch.topology.num_edges:
            self._learn({n: s for n, s in schema.items() if s.domain == "edge"})
            return schema  # which has a row of every feature

        def has_rows(name: str, spec: Any) -> bool:
            if spec.type:
                return spec.type in (types or ())
            if spec.domain == "pair":
                return batch.has_pairs(name)
            return spec.domain != "edge" or batch.has_edges(name)

        own = {n: s for n, s in schema.items() if has_rows(n, s)}
        self._learn({n: s for n, s in own.items() if s.domain in ("edge", "pair") or s.type})
        learnt = {
            n: s
            for n, s in self._known()
            if not has_rows(n, s) and (types is not None or not s.type)
        }
        return {**schema, **learnt, **own}

    def _known(self) -> Iterator[tuple[str, FeatureSpec]]:
        dtype: Any
        for name, (dtype, shape, of) in self._model._feature_types.items():
            if of == _PAIRS:
                yield name, FeatureSpec("pair", dtype, shape, False)
            else:
                yield name, FeatureSpec("vertex" if of else "edge", dtype, shape, False, of)

    def learn(
        self,
        features: Mapping[str, Array],
        of_types: Mapping[str, Mapping[str, Array]],
        of_pairs: Mapping[str, Array],
    ) -> None:
        """Learn types of features of other ranks, unless a batch has shown them.

        features: of edges. of_types: of types of vertices, by type. of_pairs: of the pairs of
        links.
        """
        found = {n: spec_of("edge", rows, False) for n, rows in features.items()}
        found |= {
            feature_name(t, n): spec_of("vertex", rows, False, t)
            for t, group in of_types.items()
            for n, rows in group.items()
        }
        found |= {n: spec_of("pair", rows, False) for n, rows in of_pairs.items()}
        self._learn({n: s for n, s in found.items() if n not in self._model._feature_types})

    def _learn(self, specs: Mapping[str, Any]) -> None:
        if not specs:
            return
        found = {
            n: (s.dtype, tuple(s.shape), _PAIRS if s.domain == "pair" else s.type)
            for n, s in specs.items()
        }
        known = self._model._feature_types
        if found.items() - known.items():
            self._model._feature_types = {**known, **found}

    def rows(self, source: Any, name: str, dtype: np.dtype[Any]) -> Array:
        """Return a feature for the engine; also one that ``source`` lacks, without a row of it."""
        whole, column = split_name(name)
        if column is not None:
            return np.ascontiguousarray(self.rows(source, whole, dtype)[:, column])
        known, of = self._model._feature_types, None
        if name in known:
            _, shape, of = known[name]
        if of == "" and not source.has_edges(name):
            try:  # other data may have a feature of vertices by the same name
                found = source[name]
            except FeatureError:
                found = ()
            if len(found) == 0:
                return np.zeros((0, *shape), dtype)
        if of == _PAIRS:
            rows = source[name] if source.has_pairs(name) else np.zeros((0, *shape))
            return np.ascontiguousarray(rows, dtype=dtype)
        if of and of not in (source.type_names or ()):  # indices are those of all vertices
            if dtype == np.int32:
                several = source.structures is not None
                graphs = source.graphs[owner_of(name)[0]] if several else source
                return np.full((graphs.num_vertices, *shape), -1, dtype)
            return np.zeros((0, *shape), dtype)
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
    a feature of the source by its name, see `FeatureTypes.rows`.
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
        copies = source.copies_of(counted) * present if present.size else present
    return copies.astype(dtype)
