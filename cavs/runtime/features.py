"""Features of a batch, as the engine takes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from cavs.compiler.program import Program
from cavs.data.features import (
    FeatureDomain,
    FeatureSpec,
    feature_name,
    owner_of,
    spec_of,
    split_name,
)
from cavs.data.sample_batch import LinkType
from cavs.errors import FeatureError
from cavs.frontend.model import Model
from cavs.ir import Domain, Link, Node, Structures
from cavs.passes.differentiate import COTANGENT
from cavs.passes.merge_vertices import COPIES, PRESENT
from cavs.runtime.interface import Array, BatchLike

# In place of the type of vertices: features of pairs, of all vertices of a structure, and links.
_PAIRS, _VERTICES, _LINKS = "#pairs", "#vertices", "#links"
_OWNERS = {"edge": "", "pair": _PAIRS, "vertex": _VERTICES}
# In place of the name, dtype and shape of a feature, for the link "to": "#links to", one of these.
_SINGLE, _LISTS = ("single", (), _LINKS), ("lists", (), _LINKS)


class BatchTypes(NamedTuple):
    """Types that some graphs or samples show: arrays of features by name, without rows, and links.

    edges: features of edges. vertices: of the vertices of a structure of samples, and of links to
    one vertex each. pairs: of the pairs of links to lists. of_types: of types of vertices, by type.
    links: those with rows.
    """

    edges: Mapping[str, Array]
    vertices: Mapping[str, Array]
    pairs: Mapping[str, Array]
    of_types: Mapping[str, Mapping[str, Array]]
    links: Mapping[str, LinkType]


class FeatureTypes:
    """Types of features that a batch may have no row of: empty arrays have none.

    They are features of edges, of pairs, of types of vertices, and of vertices of the structures of
    samples, and learnt from batches that have some. So is it learnt whether a link leads to one
    vertex each. The model stores them, for other sessions and for checkpoints.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    def schema(self, batch: BatchLike) -> Mapping[str, Any]:
        """Return the type of every feature of ``batch``; as learnt, where it has no row of it."""
        schema, types = batch.feature_schema(), batch.type_names
        if types is None and batch.structures is None and batch.topology.num_edges:
            self._learn({n: s for n, s in schema.items() if s.domain == "edge"})
            return schema  # which has a row of every feature

        several = batch.structures is not None

        def has_rows(name: str, spec: Any) -> bool:
            if spec.type:
                return spec.type in (types or ())
            if spec.domain == "pair":
                return batch.has_pairs(name)
            if spec.domain == "vertex":
                return not several or batch.has_vertices(name)
            return spec.domain != "edge" or batch.has_edges(name)

        learnable = ("edge", "pair", "vertex") if several else ("edge",)
        own = {n: s for n, s in schema.items() if has_rows(n, s)}
        self._learn({n: s for n, s in own.items() if s.domain in learnable or s.type})
        learnt = {
            n: s
            for n, s in self._known()
            if not has_rows(n, s) and (several or types is not None or not s.type)
        }
        return {**schema, **learnt, **own}

    def structures(self, batch: BatchLike) -> Structures | None:
        """Return the structures and links of samples; None for a batch of graphs.

        A link without rows in all samples is as learnt, or to one vertex each.
        """
        if batch.structures is None:
            return None
        self._store(_links(batch.links))
        known = self._model._feature_types
        return Structures(
            batch.structures,
            tuple(
                Link(name, x.target, x.source, known.get(_key(name), _SINGLE) == _SINGLE)
                for name, x in batch.links.items()
            ),
        )

    def _known(self) -> Iterator[tuple[str, FeatureSpec]]:
        dtype: Any
        for name, (dtype, shape, of) in self._model._feature_types.items():
            if of == _LINKS:
                continue
            if of in (_PAIRS, _VERTICES):
                domain: FeatureDomain = "pair" if of == _PAIRS else "vertex"
                yield name, FeatureSpec(domain, dtype, shape, False)
            else:
                yield name, FeatureSpec("vertex" if of else "edge", dtype, shape, False, of)

    def learn(self, types: BatchTypes) -> None:
        """Learn types that other ranks have seen, unless a batch of this session has shown them."""
        known = self._model._feature_types
        self._store({n: link for n, link in _links(types.links).items() if n not in known})
        found = {n: spec_of("edge", rows, False) for n, rows in types.edges.items()}
        found |= {n: spec_of("vertex", rows, False) for n, rows in types.vertices.items()}
        found |= {n: spec_of("pair", rows, False) for n, rows in types.pairs.items()}
        found |= {
            feature_name(t, n): spec_of("vertex", rows, False, t)
            for t, group in types.of_types.items()
            for n, rows in group.items()
        }
        self._learn({n: s for n, s in found.items() if n not in self._model._feature_types})

    def _learn(self, specs: Mapping[str, Any]) -> None:
        if not specs:
            return
        self._store(
            {n: (s.dtype, tuple(s.shape), s.type or _OWNERS[s.domain]) for n, s in specs.items()}
        )

    def _store(self, found: Mapping[str, Any]) -> None:
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
        elif source.structures is None:  # the most frequent case
            return np.ascontiguousarray(source[name], dtype=dtype)
        # Numbers of vertices among those of their type are not learnt: they have no shape.
        if (of == "" and not source.has_edges(name)) or (
            of in (None, _VERTICES) and not source.has_vertices(name)
        ):
            try:  # other data may have a feature of another domain by the same name
                found = source[name]
            except FeatureError:
                found = np.zeros(0)
            if len(found) == 0:
                return np.zeros((0, *(found.shape[1:] if of is None else shape)), dtype)
        if of == _PAIRS:
            rows = source[name] if source.has_pairs(name) else np.zeros((0, *shape))
            return np.ascontiguousarray(rows, dtype=dtype)
        of_type = of not in (None, "", _VERTICES)
        if of_type and of not in (source.type_names or ()):  # indices are those of all vertices
            if dtype == np.int32:
                several = source.structures is not None
                graphs = source.graphs[owner_of(name)[0]] if several else source
                return np.full((graphs.num_vertices, *shape), -1, dtype)
            return np.zeros((0, *shape), dtype)
        return np.ascontiguousarray(source[name], dtype=dtype)


def _key(link: str) -> str:
    return f"{_LINKS} {link}"


def _links(links: Mapping[str, LinkType]) -> dict[str, Any]:
    """Return the entry of each link that has rows."""
    return {
        _key(name): _SINGLE if link.single else _LISTS
        for name, link in links.items()
        if link.single is not None
    }


RowsOf = Callable[[Any, str, np.dtype[Any]], Array]


def rows_in(batch: Any, domain: Domain) -> int:
    """Return the number of rows of a batch in a domain of an output."""
    if domain.base in ("one", "graph"):
        return 1 if domain.base == "one" else int(batch.num_graphs)
    graphs = batch.graphs[domain.structure] if domain.structure else batch
    return int(graphs.num_vertices if domain.base == "vertex" else graphs.num_edges)


def with_cotangents(rows_of: RowsOf, outputs: Mapping[str, Node], batch: Any) -> RowsOf:
    """Return ``rows_of`` for programs that also read cotangents of ``outputs`` for ``batch``.

    Their rows are memory without values: the forward stages do not read them.
    """

    def rows(source: Any, name: str, dtype: np.dtype[Any]) -> Array:
        if not name.startswith(COTANGENT):
            return rows_of(source, name, dtype)
        t = outputs[name.removeprefix(COTANGENT)].type
        count = rows_in(source if t.domain.base == "vertex" else batch, t.domain)
        return np.empty((count, *t.shape), dtype)

    return rows


def features(
    program: Program,
    source: Any,
    merged: bool,
    dtype: np.dtype[Any],
    rows_of: RowsOf,
) -> tuple[list[Array], list[Array]]:
    """Return the float features of ``program`` as matrices of ``dtype``, and its integer features.

    source: the batch; merged: its distinct vertices instead, see cavs.data.merge. rows_of: returns
    a feature of the source by its name, see `FeatureTypes.rows`.
    """

    def feature(name: str, dtype: np.dtype[Any]) -> Array:
        if not merged or name.startswith(COTANGENT):
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
    rows_of: RowsOf,
) -> Array:
    if not name.startswith((COPIES, PRESENT)):
        return rows_of(source, name, dtype)
    copies: Array
    if name.startswith(COPIES):  # read by merge_vertices
        copies = source.copies_in(name.removeprefix(COPIES).lstrip())
    else:
        counted = name.removeprefix(PRESENT)
        present = rows_of(source, counted, np.dtype(np.int32)) >= 0
        copies = source.copies_of(split_name(counted)[0]) * present if present.size else present
    return copies.astype(dtype)
