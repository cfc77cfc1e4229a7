"""Types of vertices: a name for each vertex of a graph, and features that belong to a type."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.data.features import Array, FeatureSpec, check_features, feature_name, owner_of, spec_of
from cavs.data.structure import Indices, graph_error
from cavs.errors import FeatureError

TYPE = "#type"  # the column of a graph with the number of the type of each vertex
ROW = "#row "  # + type: the row of each vertex in the features of its type, -1 at other types


def row_feature(vertex_type: str, structure: str = "") -> str:
    """Return the name of the feature ROW of a type, of a structure of samples if given."""
    name = ROW + vertex_type
    return feature_name(structure, name) if structure else name


NO_TYPES: Mapping[str, Mapping[str, Array]] = MappingProxyType({})

_names: list[str] = []  # the types that occur in this process, by number
_numbers: dict[str, int] = {}
_lock = threading.Lock()


def _number_of(name: str) -> int:
    found = _numbers.get(name)
    if found is None:
        with _lock:
            found = _numbers.get(name)
            if found is None:
                _names.append(name)
                found = _numbers[name] = len(_names) - 1
    return found


def number_of_bits(types: Sequence[str]) -> int:
    """Return the number of bits that number ``types``."""
    return max(len(types) - 1, 0).bit_length()


def number_types(types: Iterable[str], count: int, name: str) -> Indices:
    """Return the number of the type of each vertex; GraphError unless ``types`` are names of them.

    count: of the vertices of the graph ``name``.
    """
    if isinstance(types, str) or not isinstance(types, Iterable):
        raise graph_error(
            name,
            f"types are a list with a name for every vertex, found {types!r:.80}",
            hint='types=["scan", "join"]',
        )
    found = list(types)
    for v, one in enumerate(found):
        if not isinstance(one, str) or not one or one.startswith("#"):
            raise graph_error(
                name,
                f"the type of vertex {v} is {one!r:.80}, and no name",
                v,
                "a type is a text, such as the name of an operator, that does not begin with #",
            )
    if len(found) != count:
        raise graph_error(
            name,
            f"{len(found)} types for {count} vertices",
            hint="types has one name for every vertex, in the order of the child lists",
        )
    return np.fromiter(map(_number_of, found), np.int32, len(found))


def type_names(numbers: Indices) -> tuple[str, ...]:
    """Return the name of the type of each vertex."""
    return tuple(_names[i] for i in numbers.tolist())


def flat_features(typed: Mapping[str, Mapping[str, Array]]) -> dict[str, Array]:
    """Return the features of all types by the names that programs read them by."""
    return {feature_name(t, name): x for t, of in typed.items() for name, x in of.items()}


def occurring(numbers: Indices) -> tuple[str, ...]:
    """Return the names of the types that occur among ``numbers``, sorted."""
    return tuple(sorted(_names[i] for i in np.flatnonzero(np.bincount(numbers)).tolist()))


def split_features(features: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return the features of all vertices, and those of each type, which are a dict each."""
    if not isinstance(features, Mapping):
        return features, {}
    typed = {k: x for k, x in features.items() if isinstance(x, Mapping)}
    return ({k: x for k, x in features.items() if k not in typed} if typed else features), typed


def check_typed_features(
    typed: Mapping[str, Mapping[str, Any]], numbers: Indices | None, label: str
) -> dict[str, Mapping[str, Array]]:
    """Return the features of each type, checked; FeatureError if they do not fit the vertices.

    numbers: of the types of the vertices. An empty list of a type without vertices has no dtype: it
    is left out.
    """
    if typed and numbers is None:
        raise FeatureError(
            f"{label}: feature {next(iter(typed))!r} is a dict, the features of a type of "
            "vertices, but the graph has no types",
            hint="give the type of every vertex, types=[...], or a feature as one array",
        )
    found = {}
    for of, features in typed.items():
        rows = 0 if numbers is None else int((numbers == _number_of(of)).sum())
        found[of] = check_features(features, "vertex", rows, label, of)
    return found


class _NumberedTypes:
    """The types of vertices by their numbers, int32 [vertices]."""

    def __init__(self, numbers: Indices) -> None:
        self.numbers = numbers
        self._of: dict[str, NDArray[np.intp]] = {}

    def vertices_of(self, vertex_type: str) -> NDArray[np.intp]:
        """Return the vertices of a type."""
        found = self._of.get(vertex_type)
        if found is None:
            found = np.flatnonzero(self.numbers == _numbers.get(vertex_type, -1))
            self._of[vertex_type] = found
        return found

    def values(self, of: Mapping[str, int], other: int) -> NDArray[np.intp]:
        """Return the value of the type of each vertex, ``other`` where it has none."""
        found: NDArray[np.intp] = np.array([*of.values(), other])[self.numbered_by(tuple(of))]
        return found

    def numbered(self, vertex_type: str) -> Indices:
        """Return for each vertex its number among those of a type, -1 at other types."""
        return self._whole(vertex_type, (), None)

    def _whole(self, vertex_type: str, shape: tuple[int, ...], rows: Array | None) -> Indices:
        """Return integers of a type, or by default their numbers, with -1 at other types."""
        vertices = self.vertices_of(vertex_type)
        found = np.full((len(self.numbers), *shape), -1, np.int32)
        found[vertices] = np.arange(len(vertices), dtype=np.int32) if rows is None else rows
        found.setflags(write=False)
        return found

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The types that occur, sorted."""
        return occurring(self.numbers)

    def bits(self, types: Sequence[str], masks: NDArray[np.uint32] | None) -> NDArray[np.uint32]:
        """Return presence masks after the number of each vertex's type, which is in ``types``."""
        found = self.numbered_by(types).astype(np.uint32)
        if masks is not None:
            found |= masks << np.uint32(number_of_bits(types))
        return found

    def name_of(self, vertex: int) -> str:
        """Return the type of a vertex."""
        return _names[int(self.numbers[vertex])]

    def numbered_by(self, types: Sequence[str]) -> Indices:
        """Return the number of each vertex's type in ``types``, -1 where it is none of them."""
        table = np.full(len(_names), -1, np.int32)
        for i, name in enumerate(types):
            if name in _numbers and _numbers[name] < len(table):
                table[_numbers[name]] = i
        found: Indices = table[self.numbers]
        return found


class VertexTypes(_NumberedTypes):
    """The types of the vertices of a graph, or of a batch, and the features that belong to a type.

    numbers: int32 [vertices], of their types. features: by type and name, a row for each vertex of
    the type, in the order of the vertices. absent: flattened names of those that hold -1.
    """

    def __init__(
        self,
        numbers: Indices,
        features: Mapping[str, Mapping[str, Array]],
        absent: frozenset[str],
    ) -> None:
        super().__init__(numbers)
        self._absent = absent
        self.features: Mapping[str, Mapping[str, Array]] = MappingProxyType(
            {of: MappingProxyType(dict(group)) for of, group in features.items()}
        )
        self._flat = {
            feature_name(of, name): (of, rows)
            for of, group in features.items()
            for name, rows in group.items()
        }
        self._rows: dict[str, Array] = {}

    def schema(self) -> dict[str, FeatureSpec]:
        """Return the `FeatureSpec` of every feature by its flattened name."""
        return {
            name: spec_of("vertex", rows, name in self._absent, of)
            for name, (of, rows) in self._flat.items()
        }

    def __contains__(self, name: object) -> bool:
        return name in self._flat or (isinstance(name, str) and name.startswith(ROW))

    def __getitem__(self, name: str) -> Array:
        """Return a feature as programs read it.

        Integers are int32 [vertices, ...], -1 at other types; floats are float32 [vertices of the
        type, ...].
        """
        found = self._rows.get(name)
        if found is None:
            found = self._rows[name] = self._for_programs(name)
        return found

    def _for_programs(self, name: str) -> Array:
        if name.startswith(ROW):
            return self.numbered(name.removeprefix(ROW))
        of, rows = self._flat[name]
        return self._whole(of, rows.shape[1:], rows) if rows.dtype == np.int32 else rows

    def rows_at(self, name: str, vertices: Indices) -> Array:
        """Return a feature as programs read it of some vertices, in that order."""
        of, values = self._flat[name]
        found: Array
        if values.dtype == np.int32:
            found = self[name][vertices]
        else:
            rows = self[ROW + of][vertices]
            found = values[rows[rows >= 0]]
        return found

    def lacks(self, name: str) -> bool:
        """True if ``name`` may be a feature of a type that no vertex has."""
        of, _ = owner_of(name)
        return of in _numbers and of not in self.names

    def column(self, name: str) -> Array:
        """Return a feature with a row for every vertex: zeros, or -1, at other types."""
        of, rows = self._flat[name]
        if rows.dtype == np.int32:
            return self[name]
        whole = np.zeros((len(self.numbers), *rows.shape[1:]), rows.dtype)
        whole[self.vertices_of(of)] = rows
        return whole

    def at(self, vertices: Indices) -> MergedTypes:
        """Return the types and features of some vertices, in that order."""
        return MergedTypes(self, vertices)


class MergedTypes(_NumberedTypes):
    """The types of the vertices that remain where equal ones are merged, and what programs read."""

    def __init__(self, whole: VertexTypes, vertices: Indices) -> None:
        super().__init__(whole.numbers[vertices])
        self._types, self._vertices = whole, vertices

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def __getitem__(self, name: str) -> Array:
        """Return a feature as programs read it, see `VertexTypes`."""
        if name.startswith(ROW):
            return self.numbered(name.removeprefix(ROW))
        return self._types.rows_at(name, self._vertices)
