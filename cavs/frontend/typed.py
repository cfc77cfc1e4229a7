"""Vertex functions of types: which function runs at which type of vertices, and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from cavs.errors import FeatureError, ShapeError, TraceError, line_of, user_line
from cavs.frontend.input_names import check_inputs
from cavs.ir import FLOAT, BatchRule, Node, apply, as_node, rebuild
from cavs.ops.types import merge_types, of_type

F = TypeVar("F", bound=Callable[..., None])
_MARK = "_vertex_types"
_DECORATE = '@cavs.vertex("join") above def join_vertex(self, v)'


def vertex(*types: str) -> Callable[[F], F]:
    """Return a decorator for the method that runs at vertices of ``types``.

    A `VertexFunction` with such methods has no method ``vertex``. Graphs name the type of every
    vertex: ``cavs.Graph(children, types=[...])``. TraceError for anything but names.
    """
    for name in types or (None,):
        if not isinstance(name, str) or not name or name.startswith("#"):
            raise TraceError(
                f"cavs.vertex takes names of types, found {name!r:.60}",
                where=user_line(),
                hint=_DECORATE,
            )

    def mark(function: F) -> F:
        setattr(function, _MARK, tuple(dict.fromkeys([*getattr(function, _MARK, ()), *types])))
        return function

    return mark


def functions_of(cell: Any, base: type) -> dict[str | None, Callable[..., None]]:
    """Return the vertex function of each type of vertices, or under None that of all vertices.

    base: the class of all cells. A function of a subclass takes precedence: for its types, and
    where it overrides a method without naming types, for those of the method. TraceError for two
    functions of one type, and for functions of types next to a method ``vertex``.
    """
    cls = type(cell)
    found: dict[str | None, Callable[..., None]] = {}
    for owner in reversed(cls.__mro__):
        own: dict[str | None, Callable[..., None]] = {}
        for key, function in vars(owner).items():
            types = getattr(function, _MARK, ())
            if types and getattr(cls, key) is not function and hasattr(getattr(cls, key), _MARK):
                continue  # overridden by one with types of its own
            for name in types:
                if name in own:
                    raise TraceError(
                        f"{owner.__name__} has two vertex functions for the type {name!r}",
                        where=line_of(function),
                        hint="leave one of them out, or give it another type",
                    )
                own[name] = getattr(cell, key)
        found |= own
    if found and cls.vertex is not base.vertex:  # type: ignore[attr-defined]
        raise TraceError(
            f"{cls.__name__} has a method vertex and vertex functions for "
            f"{', '.join(map(str, found))}",
            where=line_of(cell.vertex),
            hint=f"give it the types that it is for: {_DECORATE}",
        )
    return found or {None: cell.vertex}


def name_of(cell: str, vertex_type: str | None, function: Callable[..., None]) -> str:
    """Return the name of a vertex function in errors: ``Plan.join_vertex``."""
    return f"{cell}.{'vertex' if vertex_type is None else function.__name__}"


@dataclass
class CellInputs:
    """The inputs of a call: of all vertices, and of each type.

    features: the types whose inputs are all the features that they have, read or not.
    """

    whole: dict[str, Node]
    typed: dict[str, dict[str, Node]]
    features: set[str]

    def of(self, vertex_type: str | None) -> dict[str, Node]:
        """Return the inputs of the function of a type; None is that of all vertices."""
        return self.whole | self.typed.get(vertex_type or "", {})

    def named(self) -> list[tuple[str, Node]]:
        """Return all inputs, those of a type as ``type.name``."""
        typed = [(f"{t}.{k}", x) for t, of in self.typed.items() for k, x in of.items()]
        return [*self.whole.items(), *typed]

    def check_read(
        self,
        cell: Any,
        base: type,
        functions: Mapping[str | None, Callable[..., None]],
        vertices: Mapping[str | None, Any],
        offered: Collection[str],
    ) -> None:
        """FeatureError for an input that the function of no type, or not that of its own, reads."""
        read = dict.fromkeys(k for v in vertices.values() for k in v._read)
        given = [k for k in self.whole if k not in offered]
        named = {t: (name_of(type(cell).__name__, t, f), f) for t, f in functions.items()}
        check_inputs(cell, base, dict(named.values()), given, read)
        for name, own in self.typed.items():
            if name not in self.features:
                check_inputs(cell, base, dict([named[name]]), own, vertices[name]._read)


def split_inputs(cell: str, inputs: Mapping[str, Any], types: Collection[str]) -> CellInputs:
    """Return the inputs of all vertices, and those of each type: keywords that are mappings.

    FeatureError for inputs of a type that the cell does not have.
    """
    found = CellInputs({}, {}, set())
    for name, value in inputs.items():
        if not isinstance(value, Mapping):
            found.whole[name] = as_node(value)
            continue
        if name not in types:
            has = f"types {', '.join(types)}" if types else "one function for all vertices"
            raise FeatureError(
                f"{cell} is called with {name}={{...}}, the inputs of a type of vertices; it has "
                f"{has}",
                where=user_line(),
                hint=f"correct the name, or decorate its function by @cavs.vertex({name!r})"
                if types
                else f"pass a value: {name}=batch[...]",
            )
        found.typed[name] = {k: as_node(x) for k, x in value.items()}
        if isinstance(value, TypeFeatures):
            found.features.add(name)
    return found


def at_type(x: Node, name: str | None) -> Node:
    """Return an input at the vertices of a type; None is all vertices."""
    of = x.type.domain
    if name is None or not of.by_structure or of.vertex_type == name:
        return x
    if of.vertex_type is not None:
        raise FeatureError(
            f"a value of vertices of the type {of.vertex_type!r} is read at those of the type "
            f"{name!r}: {x.type}",
            where=user_line(),
            hint=f"pass it to the function of its type alone: {of.vertex_type}={{...}}",
        )
    if x.op.name == "feature":
        return rebuild(x, (), of.of_type(name))
    return of_type(x, name) if x.type.dtype == FLOAT else x


def check_rows(nodes: Iterable[Node], before: int, name: str) -> None:
    """TraceError for a sum over rows of the batch in a cell, which is written for one vertex.

    before: the serial from which on nodes are the cell's.
    """
    for n in nodes:
        over = max((x.type.domain.rank for x in n.inputs), default=0)
        reduces = n.op.rule is BatchRule.REDUCE or (
            n.op.reduces_segments and n.type.domain.base == "graph"
        )
        if reduces and over and n.serial > before:
            raise TraceError(
                f"{name} is written for one vertex, [{n.op.name}] sums over the rows of the batch",
                where=n.where,
                hint="fold the children by .sum(), .mean() or .max(), a row by .sum(-1); compute "
                "values of all vertices outside, and pull them",
            )


def merged_states(
    inner: Mapping[tuple[str, str | None, str], Node],
    names: Iterable[str],
    types: Collection[str | None],
) -> dict[str, Node]:
    """Return the states of all vertices by name, from the values ("state", type, name)."""
    if None in types:
        return {n: inner["state", None, n] for n in names}
    values = {n: {t: inner["state", t, n] for t in types} for n in names}
    return {n: _merged(of, next(iter(of.values()))) for n, of in values.items()}


def _merged(values: Mapping[str | None, Node], like: Node) -> Node:
    named = {name: x for name, x in values.items() if name is not None}
    return merge_types(named, like.shape, like.type.domain.of_type(None))


def merged_pushes(
    cell: str, inner: Mapping[tuple[str, str | None, str], Node], pushes: Mapping[str, Node]
) -> dict[str, Node]:
    """Return the pushed values of all vertices from those of each type.

    inner: values by ("pushed", type, name). pushes: one of the values of each name, as they are
    pushed. A type that does not push a value has zeros there. ShapeError and TraceError where types
    push values that differ in shape, or of vertices and of edges.
    """
    if "" in pushes and len(pushes) > 1:
        raise TraceError(
            f"{cell} pushes one value without a name at some types, and "
            f"{', '.join(filter(None, pushes))} at others",
            where=user_line(),
            hint="push by name at all types: v.push(h=h)",
        )
    found = {}
    for key, pushed in pushes.items():
        values = {t: x for (what, t, k), x in inner.items() if what == "pushed" and k == key}
        if None in values:
            x = values[None]
            found[key] = apply("push", x) if pushed.op.name == "push" else pushed
        else:
            found[key] = apply("push", _merged_push(cell, key, values))
    return found


def _merged_push(cell: str, key: str, values: Mapping[str | None, Node]) -> Node:
    one, first = next(iter(values.items()))
    shown = f" {key}" if key else ""
    for name, x in values.items():
        if x.type.dtype != FLOAT:
            raise TraceError(
                f"{cell} pushes{shown} at {name!r} as {x.type}, which are integers",
                where=x.where,
                hint="the feature itself, batch[...], is outside of the cell already",
            )
        if x.shape != first.shape or x.type.domain.base != first.type.domain.base:
            raise ShapeError(
                f"{cell} pushes{shown} as {first.type} at {one!r}, as {x.type} at {name!r}",
                where=x.where,
                hint="all types push values of one shape, all of vertices or all of edges; a type "
                "that pushes none has zeros there",
            )
    return _merged(values, first)


class TypeFeatures(Mapping[str, Node]):
    """The features of a type of vertices in a symbolic batch: ``batch["join"]["cost"]``."""

    def __init__(self, vertex_type: str, nodes: Mapping[str, Callable[[], Node]]) -> None:
        self._type, self._nodes = vertex_type, nodes

    def __getitem__(self, name: str) -> Node:
        if name not in self._nodes:
            raise FeatureError(
                f"no feature {name!r} of vertices of type {self._type!r} in the data; there are "
                f"{', '.join(sorted(self._nodes)) or 'none'}",
                where=user_line(),
                hint="correct the name, or give it to every graph: "
                f"cavs.Graph(..., features={{{self._type!r}: {{{name!r}: rows}}}})",
            )
        return self._nodes[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    def get(self, name: str, default: Any = None, /) -> Any:
        """Return the feature ``name``, or ``default`` where the data has none."""
        return self[name] if name in self._nodes else default
