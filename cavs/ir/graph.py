"""Graphs of nodes: outputs and recurrent states, and the walks every pass needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from cavs.ir.node import Node, make, origin
from cavs.ir.order import toposort
from cavs.ir.types import Domain


@dataclass(eq=False)
class Structure:
    """One application of a vertex function to the input graphs.

    arity: how many children it looks at; None where it reads all. where: the user's line.
    top_down: it runs from the roots down. parents: how many of these it looks at then.
    """

    name: str
    arity: int | None = None
    where: str = ""
    top_down: bool = False
    parents: int | None = None


@dataclass(eq=False)
class Slot:
    """A recurrent value: what a vertex scatters and its neighbours gather.

    Forward slots hold one row a vertex, read through ``gather`` (one row an edge); with ``child`` k
    they are read as k-th child only. With ``leaf`` zeros are gathered from other children than
    those without children (True), or with children (False). Backward slots
    hold one row an edge (the cotangent of a gather), read through ``gather_grad`` (one row a
    vertex, summed over the edges that leave it), or through ``gather_out`` (one row for each of
    these edges). With ``child`` k they hold one row a vertex, the
    cotangent of what it gathered from its k-th child, summed over the parents whose k-th child a
    vertex is; with ``alike`` that of what it gathered from every child. The split breaks the cycle
    of the recurrence. A structure that runs top-down has backward slots for its states, and forward
    ones for their cotangents.
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
        """What a row stands for: "vertex" or "edge"."""
        of_edges = self.backward and self.child is None and not self.alike
        return "edge" if of_edges else "vertex"

    def __repr__(self) -> str:
        of = "" if self.child is None else f"[{self.child}]"
        of += {None: "", True: "[leaf]", False: "[inner]"}[self.leaf] + "[alike]" * self.alike
        cotangent = self.backward is not self.structure.top_down
        return f"{self.structure.name}.{self.name}{of}" + ("'" if cotangent else "")

    def __lt__(self, other: Slot) -> bool:
        return repr(self) < repr(other)


@dataclass
class Graph:
    """Named outputs, and the value behind every slot. Passes map Graph to Graph."""

    outputs: dict[str, Node]
    slots: dict[Slot, Node] = field(default_factory=dict)
    # The roots and nodes of the last call of `nodes`: passes ask again and again.
    _sorted: tuple[list[Node], list[Node]] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def roots(self) -> list[Node]:
        """All nodes that must be computed."""
        return [*self.outputs.values(), *self.slots.values()]

    def nodes(self) -> list[Node]:
        """Every node the roots need, inputs first."""
        roots = self.roots()
        if self._sorted is None or self._sorted[0] != roots:
            self._sorted = roots, toposort(roots)
        return self._sorted[1].copy()


def users(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """For every node, those among ``nodes`` that read it."""
    result: dict[Node, list[Node]] = {}
    for node in nodes:
        for x in dict.fromkeys(node.inputs):
            result.setdefault(x, []).append(node)
    return result


def rebuild(node: Node, inputs: tuple[Node, ...], domain: Domain | None = None) -> Node:
    """``node`` with other inputs; its type is inferred anew where theirs are others."""
    same = len(inputs) == len(node.inputs) and all(map(is_, inputs, node.inputs))
    attrs: dict[str, Any] = dict(node.attrs)
    if domain is not None and attrs.get("domain", domain) != domain:
        attrs["domain"] = domain
    elif same:
        return node
    elif node.checked and [x.type for x in inputs] == [x.type for x in node.inputs]:
        new = make(node.op, inputs, attrs, node.type, node.where)
        new.checked = True  # no more than types of inputs and attributes are
        return new
    tensor_type = node.op.infer([x.type for x in inputs], attrs)
    return make(node.op, inputs, attrs, tensor_type, node.where)


def rewrite(
    graph: Graph, rule: Callable[[Node, tuple[Node, ...]], Node | None], rules: object = None
) -> Graph:
    """Rebuilds ``graph`` bottom-up; ``rule(node, new_inputs)`` may return a replacement.

    rules: those for which nodes are settled that ``rule`` need not be asked about.
    """
    new: dict[Node, Node] = {}  # of what is no longer itself
    with origin("") as lines:
        for node in graph.nodes():
            inputs = node.inputs
            if not new.keys().isdisjoint(inputs):
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
