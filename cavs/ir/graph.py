"""Graphs of nodes, their slots, and the walks that passes need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import is_

from cavs.ir.node import Node, make, origin
from cavs.ir.order import toposort
from cavs.ir.types import Domain


@dataclass(eq=False)
class Structure:
    """One application of a vertex function to the input graphs.

    arity: number of children that it reads; None for all. where: the user's line. top_down: it runs
    from the roots down; parents: number of parents that it reads then. of_types: the number of
    children, or parents, that the function of each type of vertices reads; empty where one function
    runs at all vertices. of: the structure of the samples that it runs over, if they have several.
    """

    name: str
    arity: int | None = None
    where: str = ""
    top_down: bool = False
    parents: int | None = None
    of_types: dict[str, int | None] = field(default_factory=dict)
    of: str = ""

    def arity_of(self, vertex_type: str | None) -> int | None:
        """Return the number of children that vertices of a type read; None for all."""
        return self.of_types.get(vertex_type, self.arity) if vertex_type else self.arity

    @property
    def vertex(self) -> Domain:
        """The domain of its vertices."""
        return Domain("vertex", None, self.of)

    @property
    def edge(self) -> Domain:
        """The domain of its edges."""
        return Domain("edge", None, self.of)


@dataclass(eq=False)
class Slot:
    """A recurrent value, which a vertex scatters and its neighbours gather.

    A forward slot has one row per vertex. ``gather`` reads it with one row per edge; with ``child``
    k only as the k-th child. With ``leaf`` the gather gives zeros for children that have children
    (True) or that are leaves (False). A backward slot has one row per edge, the cotangent of a
    gather. ``gather_grad`` reads it with one row per vertex, the sum over the edges that leave the
    vertex; ``gather_out`` with one row for each of these edges. With ``child`` k, a backward slot
    has one row per vertex, the cotangent of its gather from the k-th child; with ``alike``, that of
    its gather from every child. The two slots break the cycle of the recurrence. A structure that
    runs top-down has backward slots for its states, and forward slots for their cotangents.
    """

    name: str
    structure: Structure
    shape: tuple[int, ...]
    backward: bool = False
    child: int | None = None
    leaf: bool | None = None
    alike: bool = False

    @property
    def base(self) -> str:
        """Domain of the rows: "vertex" or "edge"."""
        of_edges = self.backward and self.child is None and not self.alike
        return "edge" if of_edges else "vertex"

    def __repr__(self) -> str:
        of = "" if self.child is None else f"[{self.child}]"
        of += {None: "", True: "[leaf]", False: "[inner]"}[self.leaf] + "[alike]" * self.alike
        cotangent = self.backward is not self.structure.top_down
        return f"{self.structure.name}.{self.name}{of}" + ("'" if cotangent else "")


@dataclass
class Graph:
    """Named outputs, and the value of every slot. Passes map Graph to Graph."""

    outputs: dict[str, Node]
    slots: dict[Slot, Node] = field(default_factory=dict)
    # The roots and nodes of the last call of `nodes`, which passes repeat.
    _sorted: tuple[list[Node], list[Node]] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def roots(self) -> list[Node]:
        """Return all nodes that must be computed."""
        return [*self.outputs.values(), *self.slots.values()]

    def nodes(self) -> list[Node]:
        """Return all nodes that the roots depend on, inputs first."""
        roots = self.roots()
        if self._sorted is None or self._sorted[0] != roots:
            self._sorted = roots, toposort(roots)
        return self._sorted[1].copy()


def users(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """Return, for every node, the ``nodes`` that read it."""
    result: dict[Node, list[Node]] = {}
    for node in nodes:
        for x in dict.fromkeys(node.inputs):
            result.setdefault(x, []).append(node)
    return result


def rebuild(node: Node, inputs: tuple[Node, ...], domain: Domain | None = None) -> Node:
    """Return ``node`` with other inputs; its type is inferred if theirs differ."""
    before, named = node.inputs, node.attrs
    if domain is not None:
        named = tuple([(k, domain if k == "domain" else v) for k, v in named])
    elif inputs is before:
        return node
    if named == node.attrs:
        if len(inputs) == len(before) and all(map(is_, inputs, before)):
            return node
        if node.checked and [x.type for x in inputs] == [x.type for x in before]:
            new = make(node.op, inputs, named, node.type, node.where)
            new.checked = True  # a check reads the types of inputs and the attributes
            return new
    tensor_type = node.op.infer([x.type for x in inputs], dict(named))
    return make(node.op, inputs, named, tensor_type, node.where)


def rewrite(
    graph: Graph, rule: Callable[[Node, tuple[Node, ...]], Node | None], rules: object = None
) -> Graph:
    """Rebuild ``graph`` bottom-up; ``rule(node, new_inputs)`` may return a replacement.

    rules: nodes that are settled for these, and whose inputs stay, are skipped.
    """
    new: dict[Node, Node] = {}  # replaced nodes
    replaced = new.keys()
    with origin("") as lines:
        for node in graph.nodes():
            inputs = node.inputs
            if not replaced.isdisjoint(inputs):
                inputs = tuple([new.get(x, x) for x in inputs])
            elif rules is not None and node.settled is rules:
                continue
            lines[-1] = node.where
            replacement = rule(node, inputs)
            if replacement is None:
                replacement = rebuild(node, inputs)
            if replacement is not node:
                new[node] = replacement
    return Graph(
        {k: new.get(v, v) for k, v in graph.outputs.items()},
        {s: new.get(v, v) for s, v in graph.slots.items()},
    )
