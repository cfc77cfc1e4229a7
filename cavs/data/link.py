"""Links between the vertices of two structures of a sample, and the features of their pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from cavs.data.features import NO_FEATURES, Array, FeatureDomain, check_feature, numbers
from cavs.data.structure import Indices, as_indices
from cavs.errors import FeatureError, GraphError

ROWS = "one vertex for each vertex of {0}, -1 for none; or a list of vertices for each"
_PAIRS = "a row for each vertex that is read, in the order of the lists"
_SINGLE = "a row for each vertex of {0}, as the link has one vertex, or -1, for each"
_ALL = (
    "an array of shape (vertices of {0}, vertices of {1}, ...), or a row for each pair, those of "
    "the first vertex of {0} first"
)

_EMPTY: Array = np.zeros(0)  # an empty list, which has no dtype


@final
class Link:
    """Which vertices of ``source`` each vertex of ``target`` reads, by the names of structures.

    rows: for every vertex of ``target`` the index of a vertex of ``source``, or -1 for none; or for
    every vertex a list of such indices; or these lists as a pair of arrays ``(offsets, vertices)``.
    features: arrays by name with a row for each pair of a vertex and one that it reads, in the
    order of the lists; where ``rows`` has one index for each vertex, a row for each vertex.
    GraphError and FeatureError for anything else. A `Sample` checks the numbers of vertices and
    rows against its graphs.
    """

    __slots__ = ("features", "offsets", "source", "target", "vertices")

    #: Arrays by name, as they were given; `rows_of_features` checks and converts them.
    features: Mapping[str, Array]

    #: Vertex v reads ``vertices[offsets[v]:offsets[v + 1]]``; None if it reads ``vertices[v]``.
    offsets: Indices | None
    #: None, and so are the offsets, if every vertex reads all of the source, see `all`.
    vertices: Indices | None

    def __init__(
        self,
        target: str,
        source: str,
        rows: ArrayLike | Sequence[Any],
        features: Mapping[str, ArrayLike] = NO_FEATURES,
    ) -> None:
        self._begin(target, source, features)
        self.offsets, self.vertices = _lists(rows, self._label, target)
        for array in (self.offsets, self.vertices):
            if array is not None:
                array.flags.writeable = False

    @classmethod
    def all(cls, target: str, source: str, features: Mapping[str, ArrayLike] = NO_FEATURES) -> Link:
        """Return the link by which every vertex of ``target`` reads all vertices of ``source``.

        They are read in the order of their numbers. It has no list of pairs: a batch makes those of
        its samples, four bytes each. features: arrays of shape (vertices of ``target``, vertices of
        ``source``, ...), or with a row for each pair.
        """
        link = object.__new__(cls)
        link._begin(target, source, features)
        link.offsets = link.vertices = None
        return link

    def _begin(self, target: str, source: str, features: Mapping[str, ArrayLike]) -> None:
        for name in (target, source):
            if not isinstance(name, str):
                raise GraphError(
                    f"a link is between structures by name, found {name!r:.80}",
                    hint='Link("words", "chars", rows): rows has one entry for each word',
                )
        self.target, self.source = target, source
        if not isinstance(features, Mapping) or not all(isinstance(x, str) for x in features):
            raise FeatureError(
                f"{self._label}: features are a dict of arrays by name, not {features!r:.80}",
                hint='features={"weight": rows}',
            )
        self.features = MappingProxyType(
            {name: self._copied(name, values) for name, values in features.items()}
        )

    def _copied(self, name: str, values: ArrayLike) -> Array:
        """Return an array that no other code changes; FeatureError unless it holds numbers."""
        if isinstance(values, list | tuple) and not values:
            return _EMPTY
        found = numbers(values, f'{self._label}: feature "{name}"')
        copied: Array = (values if isinstance(values, np.ma.MaskedArray) else found).copy()
        copied.flags.writeable = False
        return copied

    def rows_of_features(self, targets: int, sources: int, label: str) -> dict[str, Array]:
        """Return the features with a row for each pair; FeatureError for another number of rows.

        They are int32 or float32. A link to one vertex each has a row for each vertex of its
        target. A link without rows leaves out features that have no dtype. targets, sources: the
        numbers of vertices of the structures. label: the name of sample and link.
        """
        found = {}
        count = targets * sources if self.vertices is None else len(self.vertices)
        for name, values in self.features.items():
            rows = values
            if self.vertices is None and values.shape[:2] == (targets, sources):
                rows = values.reshape(count, *values.shape[2:])
            if rows.ndim == 0 or len(rows) != count:
                shown = "a single number" if rows.ndim == 0 else f"{len(rows)} rows"
                of = f'{count} vertices of "{self.target}"' if self.single else f"{count} pairs"
                how = _SINGLE if self.single else _ALL if self.vertices is None else _PAIRS
                raise FeatureError(
                    f'{label} has {of}, but its feature "{name}" has {shown}',
                    hint=f"give {how.format(self.target, self.source)}",
                )
            if values is not _EMPTY:
                domain: FeatureDomain = "vertex" if self.single else "pair"
                found[name] = check_feature(name, rows, domain, None, label)
        return found

    @property
    def single(self) -> bool:
        """True if each vertex of the target reads one vertex, or none."""
        return self.offsets is None and self.vertices is not None

    @property
    def fits_both(self) -> bool:
        """True if it has no rows, so that it may be to one vertex each, or to lists."""
        return self.single and self.num_rows == 0

    @property
    def num_rows(self) -> int | None:
        """Number of vertices of the target that it has rows for; None for any number."""
        if self.vertices is None:
            return None
        return len(self.vertices if self.offsets is None else self.offsets[1:])

    @property
    def _label(self) -> str:
        return f'link from "{self.target}" to "{self.source}"'

    def __reduce__(self) -> tuple[Any, ...]:
        features: dict[str, Any] = {
            name: [] if x is _EMPTY else x for name, x in self.features.items()
        }
        if self.vertices is None:
            return Link.all, (self.target, self.source, features)
        rows = self.vertices if self.offsets is None else (self.offsets, self.vertices)
        return Link, (self.target, self.source, rows, features)

    def __repr__(self) -> str:
        if self.vertices is None:
            return f"Link.all({self.target!r}, {self.source!r})"
        how = "" if self.single else ", lists"
        return f"Link({self.target!r}, {self.source!r}, {self.num_rows} rows{how})"


def _lists(rows: Any, label: str, target: str) -> tuple[Indices | None, Indices]:
    """Return (offsets, vertices) of a link; offsets are None if there is one vertex for each."""
    hint = ROWS.format(target)
    if isinstance(rows, tuple) and len(rows) == 2 and all(isinstance(x, np.ndarray) for x in rows):
        offsets = as_indices(rows[0], f"{label}: offsets")
        vertices = as_indices(rows[1], f"{label}: vertices")
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(vertices):
            ends = [int(x) for x in offsets[[0, -1]]] if len(offsets) else []
            raise GraphError(
                f"{label}: offsets run from 0 to the {len(vertices)} vertices, found {ends}",
                hint="vertex v reads vertices[offsets[v]:offsets[v + 1]]",
            )
        if (np.diff(offsets) < 0).any():
            v = int(np.flatnonzero(np.diff(offsets) < 0)[0])
            raise GraphError(
                f"{label}: offsets must not decrease: vertex {v} has {offsets[v]} and the next "
                f"{offsets[v + 1]}",
                hint="vertex v reads vertices[offsets[v]:offsets[v + 1]]",
            )
        return offsets, vertices
    nested = isinstance(rows, np.ndarray) and rows.ndim > 1
    if not isinstance(rows, np.ndarray):
        try:
            rows = list(rows)
        except TypeError:
            raise GraphError(f"{label} has the rows {rows!r:.80}", hint=hint) from None
        nested = any(isinstance(x, Sequence | np.ndarray) and np.ndim(x) for x in rows)
    if not nested:
        return None, as_indices(rows, label)
    try:
        counts = [len(row) for row in rows]
    except TypeError:
        raise GraphError(
            f"{label} has lists for some vertices and numbers for others: {rows!r:.80}", hint=hint
        ) from None
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets, as_indices([v for row in rows for v in row], label)
