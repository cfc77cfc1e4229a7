"""Initial states: what vertices without children gather in place of zeros.

A vertex without children computes what it would with one child whose state is the initial one: that
child is number 0, and the edge to it has no features. The value of such an edge is computed at the
vertex itself, so the input graph does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from cavs.errors import DTypeError, ShapeError, TraceError, user_line
from cavs.frontend.values import Values
from cavs.ir import (
    FLOAT,
    TO_FLOATS,
    Domain,
    Node,
    Slot,
    apply,
    as_node,
    count_children,
    origin,
    rebuild,
    toposort,
)
from cavs.ir.trace import current_trace

K = TypeVar("K")


def split_initial(
    initial: Any, inputs: dict[str, Any]
) -> tuple[Mapping[str, Any] | None, dict[str, Any]]:
    """Return states by name and the inputs, to which ``initial`` belongs if it is one value."""
    if initial is None or isinstance(initial, Mapping):
        return initial, inputs
    if isinstance(initial, Values):
        return dict(initial._items()), inputs
    return None, {**inputs, "initial": initial}


def initial_rows(
    cell: str, initial: Mapping[str, Any] | None, shapes: Mapping[str, tuple[int, ...]], at: Domain
) -> dict[str, Node]:
    """Return initial states as values of the vertices ``at``; ``shapes``: of all states.

    Raises TraceError for other names and rows, ShapeError and DTypeError for other values.
    """
    found = {}
    for name, value in (initial or {}).items():
        if name not in shapes:
            raise TraceError(
                f"{cell} has no state {name!r} to begin with; it has {', '.join(shapes)}",
                where=user_line(),
                hint=f"initial={{{next(iter(shapes))!r}: ...}}; states left out are zeros",
            )
        node = as_node(value)
        if node.type.dtype != FLOAT:
            raise DTypeError(
                f"the initial state {name!r} needs floats, not {node.type}",
                where=user_line(),
                hint=TO_FLOATS,
            )
        if node.type.domain.base not in ("one", "graph", "vertex"):
            raise TraceError(
                f"the initial state {name!r} is a value of every {node.type.domain}: {node.type}",
                where=user_line(),
                hint="give one row per graph, as a feature of graphs or ops.sum_roots(h), one per "
                "vertex, or a Parameter for all",
            )
        if node.shape != shapes[name]:
            raise ShapeError(
                f"the initial state {name!r} has shape {list(node.shape)}, "
                f"the state {list(shapes[name])}",
                where=user_line(),
                hint="give rows of the shape of the state, or project them first: nn.Linear",
            )
        require_structure(f"the initial state {name!r}", node, at.structure)
        found[name] = node.at(at)
    return found


def require_structure(what: str, x: Node, structure: str) -> None:
    """TraceError if ``x`` has rows of another structure of the samples."""
    domain = x.type.domain
    if domain.by_structure and domain.structure != structure:
        raise TraceError(
            f"{what} has rows of structure {domain.structure!r}, but the cell runs over "
            f"{structure!r}: {x.type}",
            where=user_line(),
            hint="a link reads rows of one structure at vertices of another: "
            "ops.take(values, batch.link(name)); sums over graphs, as ops.sum_roots, fit all",
        )


def with_initial_state(
    values: Mapping[K, Node], initial: Mapping[Slot, Node], pulled: Iterable[Node]
) -> dict[K, Node]:
    """Return the ``values`` of a traced cell with states by slot to begin with.

    pulled: values from outside of the cell.
    """
    starter = _Starter(initial, pulled)
    return {key: starter.changed(value) for key, value in values.items()}


class _Starter:
    def __init__(self, initial: Mapping[Slot, Node], pulled: Iterable[Node]) -> None:
        self.initial, self.pulled = initial, set(pulled)
        self.new: dict[Node, Node] = {}  # value as traced -> as it runs
        self.first: dict[Node, Node] = {}  # value of an edge -> that of the edge to the state
        self.at = next(iter(initial)).structure.vertex
        self.leaf = apply("equal", count_children(self.at), 0.0)

    def changed(self, value: Node) -> Node:
        stops = self.pulled | {n for n in toposort([value]) if n.op.name == "push"}
        for n in toposort([value], stops):
            if n in self.new:
                continue
            with origin(n.where):
                outside = n in stops
                self.new[n] = n if outside else self._one(n)
                if n.type.domain.base == "edge" and n.type.dtype == FLOAT:
                    self.first[n] = self._zeros(n) if outside else self._at_first(n)
        return self.new[value]

    def _one(self, n: Node) -> Node:
        new = rebuild(n, tuple(self.new[x] for x in n.inputs))
        if n.op.name == "num_children":
            return apply("where", self.leaf, 1.0, new)
        folds = n.type.domain.base == "vertex" and n.inputs and n.inputs[0] in self.first
        if not folds or (n.op.name == "nth_child" and n.attr("k") > 0):
            return new
        return apply("where", self.leaf, self.first[n.inputs[0]], new)

    def _at_first(self, n: Node) -> Node:
        """Return a value of the edge to the initial state, which is one of the vertex."""
        if n.op.name == "gather":
            slot = n.attr("slot")
            return self.initial[slot] if slot in self.initial else self._zeros(n)
        of_edges = [x for x in n.inputs if x.type.domain.base == "edge"]
        if any(x not in self.first for x in of_edges):
            return self._zeros(n)  # an index feature of edges is absent
        inputs = tuple(self.first[x] if x in of_edges else self.new[x] for x in n.inputs)
        attrs = dict(n.attrs)
        if "stream" in attrs:  # numbers are drawn by row, and an edge has the number of some leaf
            attrs |= {"stream": current_trace().next_stream(), "domain": self.at}
            return apply(n.op.name, *inputs, **attrs)
        return rebuild(n, inputs, self.at).at(self.at)

    def _zeros(self, n: Node) -> Node:
        return apply("broadcast", 0.0, shape=n.shape, domain=self.at)
