"""Types of values: dtype, shape of a row and domain. Tuples are hashed and compared in C."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

FLOAT = "f32"  # the floating type of the session: float32, or float64 for checks
INT = "i32"

# Cures for operands of the wrong dtype.
TO_FLOATS = (
    "look an index up in an nn.Embedding first; give numbers that are no indices as floats, and "
    "so a mask, 0.0 or 1.0"
)
TO_INTEGERS = "give indices and labels as integers: np.asarray(values, np.int32)"
ONE_COLUMN = 'give each column as a feature of its own: {"a": rows[:, 0], "b": rows[:, 1]}'

_RANK = {
    "one": 0,
    "graph": 1,
    "present": 2,
    "distinct": 2,
    "vertex": 3,
    "edge": 4,
    "out": 4,
    "pair": 4,
}


def need_floats(types: Iterable[TensorType], cure: str = TO_FLOATS) -> None:
    """Raise TypeError with ``cure`` for operands that are integers."""
    for t in types:
        if t.dtype != FLOAT:
            raise TypeError(f"needs floats, not {t.dtype}", cure)


class Link(NamedTuple):
    """A link of samples: which vertices of ``source`` each vertex of ``target`` reads.

    single: it is one vertex, or none.
    """

    name: str
    target: str
    source: str
    single: bool

    @property
    def pairs(self) -> Domain:
        """The domain of the pairs of a vertex and one that it reads along the link."""
        return Domain("pair", None, self.target, Link(*self))


class Domain(NamedTuple):
    """The set that the rows of a value are indexed by: one row, or one per graph, vertex or edge.

    A row of "edge" is an edge at its parent, a row of "out" an edge at its child; no operator reads
    both. ``kind`` restricts vertices, or their edges, to one kind, or by a text to one type; None
    means all. The rows of "present" are the vertices that have an integer feature, whose name is
    ``kind``; only the operators take and place connect them with others. Those of "distinct" are
    the different values of the feature ``kind``; only take_distinct reads them. ``structure``: the
    one that vertices and edges belong to, where samples have several; only links connect two. A row
    of "pair" is a vertex of the structure with one of those that it reads along ``link``.
    """

    base: str
    kind: int | str | None = None
    structure: str = ""
    link: Link | None = None

    @property
    def rank(self) -> int:
        """Rank in broadcasting: one < graph < present, distinct < vertex < edge and out."""
        return _RANK[self.base]

    @property
    def selected(self) -> bool:
        """True for rows that the integer feature ``kind`` selects."""
        return self.base in ("present", "distinct")

    @property
    def by_structure(self) -> bool:
        """True for vertices and edges, whose rows the schedule orders."""
        return self.base in ("vertex", "edge", "out", "pair")

    @property
    def related(self) -> bool:
        """True for edges at their parent and pairs, of which a vertex has any number."""
        return self.base in ("edge", "pair")

    @property
    def vertex_type(self) -> str | None:
        """The type that vertices, or their edges, are restricted to; None where to none."""
        return self.kind if self.by_structure and isinstance(self.kind, str) else None

    def of_kind(self, kind: int | str | None) -> Domain:
        """Return the same base restricted to ``kind``, a kind or a type."""
        return _domain(self.base, kind, self.structure, self.link) if self.by_structure else self

    def at(self, base: str) -> Domain:
        """Return the domain of vertices, or edges, of the same structure and kind of vertices."""
        return _domain(base, None if self.selected else self.kind, self.structure)

    @property
    def of_vertices(self) -> Domain:
        """The domain of all vertices of the same structure."""
        return _domain("vertex", None, self.structure)

    def of_type(self, vertex_type: str | None) -> Domain:
        """Return the same base restricted to a type of vertices; None is all of them."""
        return self.of_kind(vertex_type)

    def __str__(self) -> str:
        own = self.base if self.link is None else f"{self.base}.{self.link.name}"
        base = f"{self.structure}.{own}" if self.structure else own
        return base if self.kind is None else f"{base}.{self.kind}"


@cache
def _domain(base: str, kind: int | str | None, structure: str, link: Link | None = None) -> Domain:
    return Domain(base, kind, structure, link)


ONE, GRAPH, VERTEX, EDGE = Domain("one"), Domain("graph"), Domain("vertex"), Domain("edge")
OUT = Domain("out")


class Structures(NamedTuple):
    """The structures of samples and their links, in the order of their numbers in the engine.

    A sample that is one graph has one structure, without a name.
    """

    names: tuple[str, ...] = ("",)
    links: tuple[Link, ...] = ()


class StructureMismatch(ValueError):
    """Values of two structures are combined row by row."""


class TensorType(NamedTuple):
    """dtype, shape of one row, and domain of a value."""

    dtype: str
    shape: tuple[int, ...]
    domain: Domain

    @property
    def width(self) -> int:
        """Number of elements of a row."""
        n = 1
        for s in self.shape:
            n *= s
        return n

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]@{self.domain}"


def join_domains(domains: list[Domain]) -> Domain:
    """Return the domain that all ``domains`` broadcast to.

    ValueError if they are of two kinds, or types, of vertices, or of two structures.
    """
    first = domains[0]
    if not first.selected and all(d is first or d == first for d in domains):
        return first
    top = max(domains, key=lambda d: d.rank)
    structures = sorted({d.structure for d in domains if d.rank > GRAPH.rank})
    if len(structures) > 1:
        raise StructureMismatch(
            f"rows of structures {' and '.join(map(repr, structures))} cannot be combined",
            "a link reads rows of one at vertices of another: ops.take(values, batch.link(name))",
        )
    some = next((d for d in domains if d.selected), ONE)
    if some is not ONE and any(d not in (ONE, some) for d in domains):
        raise ValueError(f"rows of {some} cannot be combined with others")
    if top.rank == EDGE.rank and len({d.base for d in domains if d.base in ("edge", "out")}) > 1:
        raise ValueError("values of edges at parents and at children cannot be combined")
    related = {(d.base, d.link) for d in domains if d.related}
    if len(related) > 1:
        raise ValueError("values of edges and of the vertices of a link cannot be combined")
    kinds = {d.kind for d in domains if d.kind is not None}
    if len(kinds) > 1:
        if types := sorted(repr(d.kind) for d in set(domains) if d.vertex_type is not None):
            raise ValueError(
                f"values of vertices of the types {' and '.join(types)} cannot be combined",
                "no vertex has both types; a vertex reads the state of another one by gather",
            )
        raise ValueError(f"values of vertex kinds {sorted(kinds)} cannot be combined")
    return top.of_kind(kinds.pop()) if kinds else top


def broadcast_shapes(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Broadcast shapes of rows by NumPy's rule; ValueError names the two sizes that differ."""
    if all(s == shapes[0] for s in shapes):
        return shapes[0]
    rank = max(len(s) for s in shapes)
    result = [1] * rank
    for shape in shapes:
        for i, size in enumerate(reversed(shape), 1):
            if size != 1:
                if result[-i] not in (1, size):
                    raise ValueError(f"sizes differ ({result[-i]} != {size})")
                result[-i] = size
    return tuple(result)
