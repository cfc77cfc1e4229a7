"""Vertex functions that run from the roots down, and gather states of parents.

The schedule does not change. States move down as cotangents do in backward: tasks run in reverse, a
value of every edge is computed at the parent and summed over the edges that leave the child. So the
slots of such a structure are backward slots, and their gradients use forward slots. Values of
edges are those of all edges, whatever the type of their ends; a type reads the sums at its own
vertices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cavs.errors import TraceError
from cavs.ir import Node, Slot, Structure, apply, constant, origin, rebuild, toposort

_INSTEAD = (
    "reduce over the parents by .sum() or .mean(); or build graphs that are turned round, "
    "cavs.Graph.reversed(), for a model that runs top-down only"
)


def turned(
    structure: Structure,
    scattered: Mapping[Slot, Node],
    pushed: Iterable[Node],
    pulled: Iterable[Node],
) -> tuple[list[Node], dict[Slot, Node]]:
    """Return the pushed values and slots of a traced cell as it runs from the roots down.

    scattered: by the slots that the trace gathers from. pulled: values from outside. TraceError for
    values that the parent cannot compute: a maximum over parents, and values of an edge that depend
    on states that its child gathers.
    """
    turner = _Turner(structure, scattered, pulled)
    values = [turner.pushed(x) for x in pushed]
    return values, turner.slots()


def _of_all(x: Node) -> Node:
    """Return an input or a gathered value of the edges of one type for all edges."""
    if x.type.domain.vertex_type is None:
        return x
    return x.inputs[0] if x.op.name == "broadcast" else rebuild(x, (), x.type.domain.of_type(None))


class _Turner:
    def __init__(
        self, structure: Structure, scattered: Mapping[Slot, Node], pulled: Iterable[Node]
    ) -> None:
        self.structure, self.scattered, self.pulled = structure, scattered, set(pulled)
        self.vertex: dict[Node, Node] = {}  # value of a vertex as traced -> as it runs
        self.summed: dict[Node, Slot] = {}  # value of an edge as traced -> slot of its sum
        self.read: dict[Node, Slot] = {}  # value of a vertex that its edges to parents read

    def _outside(self, top_down: bool = False) -> Structure:
        """Return a structure for values that depend on no state."""
        return Structure(self.structure.name, top_down=top_down, of=self.structure.of)

    def slots(self) -> dict[Slot, Node]:
        """Return all slots; every use of a value of a vertex may add some."""
        for value in self.scattered.values():
            self.at_vertex(value)
        found: dict[Slot, Node] = {}
        while len(found) < len(self.summed):
            for x, slot in list(self.summed.items()):
                if slot not in found:
                    found[slot] = self._at_edge(x)
        return found | {slot: value for value, slot in self.read.items()}

    def pushed(self, value: Node) -> Node:
        """Return a value of the vertex, or of its edges, for the outside."""
        of_edges = value.type.domain.base == "edge"
        if of_edges and (name := value.type.domain.vertex_type) is not None:
            raise TraceError(
                f"{self.structure.name} runs on a reversed graph and pushes a value of edges at "
                f"vertices of the type {name!r}",
                where=value.where,
                hint="push a sum over the parents, or build reversed graphs: cavs.Graph.reversed()",
            )
        return self._at_edge(value) if of_edges else self.at_vertex(value)

    def _inside(self, root: Node) -> Iterable[Node]:
        """Return the nodes of the cell that compute ``root``, inputs first."""
        stops = self.pulled | {n for n in toposort([root]) if n.op.name == "push"}
        return toposort([root], stops)

    def at_vertex(self, value: Node) -> Node:
        """Return a value of the vertex, with sums over its parents."""
        for n in () if value in self.vertex else self._inside(value):
            if n in self.vertex or n.type.domain.base == "edge":
                continue
            with origin(n.where):
                self.vertex[n] = self._one(n)
        return self.vertex[value]

    def _one(self, n: Node) -> Node:
        name = n.op.name
        if n in self.pulled or name == "push":
            return n
        if name == "sum_children" and n.inputs[0].type.domain.base == "edge":
            return self._sum(n.inputs[0])
        if name == "nth_child":
            vertex_type = n.type.domain.vertex_type
            if vertex_type is None:
                self.structure.parents = 1
            else:
                self.structure.of_types[vertex_type] = 1
            parent = self._sum(n.inputs[0])  # creates the slot, also for the check of arity
            zero = apply("broadcast", constant(0.0), shape=n.shape, domain=self.structure.vertex)
            return zero if n.attr("k") else parent
        if name == "num_children":
            one = apply("broadcast", constant(1.0), shape=(), domain=self.structure.edge)
            return self._sum(one)
        of_parents = bool(n.inputs) and n.inputs[0].type.domain.base == "edge"
        if n.op.reduces_segments and n.type.domain.base == "vertex" and of_parents:
            fold = "maximum" if n.op.reduction == "max" else n.op.reduction
            raise TraceError(
                f"{self.structure.name} runs on a reversed graph and takes a {fold} over parents",
                where=n.where,
                hint=_INSTEAD,
            )
        return rebuild(n, tuple(self.vertex[x] for x in n.inputs))

    def _sum(self, x: Node) -> Node:
        at = self.structure.vertex.of_type(x.type.domain.vertex_type)
        x = _of_all(x) if x.op.name == "gather" else x
        if x not in self.summed:
            gathers = [n for n in self._inside(x) if n.op.name == "gather"]
            # A value that depends on no state is outside of the recurrence.
            of = self.structure if gathers else self._outside(top_down=True)
            name = gathers[0].attr("slot").name if x in gathers else f"sum {len(self.summed)}"
            self.summed[x] = Slot(name, of, x.shape, backward=True)
        return apply("gather_grad", slot=self.summed[x], domain=at)

    def _at_edge(self, value: Node) -> Node:
        """Return a value of an edge, from the state of the parent and values of the child."""
        computed: dict[Node, Node] = {}
        for n in self._inside(value):
            base = n.type.domain.base
            with origin(n.where):
                if base == "vertex":
                    continue
                if base != "edge":
                    computed[n] = n
                elif n in self.pulled:
                    computed[n] = _of_all(n)
                elif n.op.name == "gather":
                    state = self.at_vertex(self.scattered[n.attr("slot")])
                    edge = self.structure.edge
                    computed[n] = apply("broadcast", state, shape=n.shape, domain=edge)
                else:
                    inputs = (
                        computed[x] if x in computed else self._of_child(x, n) for x in n.inputs
                    )
                    domain = None if n.type.domain.vertex_type is None else self.structure.edge
                    computed[n] = rebuild(n, tuple(inputs), domain)
        return computed[value]

    def _of_child(self, x: Node, reader: Node) -> Node:
        value = self.at_vertex(x)
        if (name := value.type.domain.vertex_type) is not None:
            raise TraceError(
                f"{self.structure.name} runs on a reversed graph, and this value of an edge needs "
                f"a value of its own vertex, which has the type {name!r}",
                where=reader.where,
                hint="a value of an edge is computed at the parent, for children of all types: "
                "combine the sum over the parents with values of the vertex, or build reversed "
                "graphs, cavs.Graph.reversed(), for a model that runs top-down only",
            )
        gathers = (n for n in toposort([value]) if n.op.name == "gather_grad")
        if any(n.attr("slot").structure is self.structure for n in gathers):
            raise TraceError(
                f"{self.structure.name} runs on a reversed graph, and this value of an edge needs "
                "values of other parents",
                where=reader.where,
                hint="a value of an edge is computed at the parent, which knows no other parent of "
                "its child: leave their sum out of it, or build reversed graphs, "
                "cavs.Graph.reversed(), for a model that runs top-down only",
            )
        if value not in self.read:
            name = f"input {len(self.read)}"
            self.read[value] = Slot(name, self._outside(), x.shape)
        return apply("gather", slot=self.read[value], domain=self.structure.edge)
