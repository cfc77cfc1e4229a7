"""The loops over tasks that a graph needs, and the nodes that must run in them."""

from __future__ import annotations

from dataclasses import dataclass

from cavs.ir import Graph, Node, Structure, toposort
from cavs.passes.access import is_view


@dataclass(eq=False)
class Loop:
    """The batch tasks of one structure, forward or backward."""

    structure: Structure
    backward: bool

    def __repr__(self) -> str:
        return f"{self.structure.name} {'backward' if self.gradient else 'forward'}"

    @property
    def gradient(self) -> bool:
        """True if it computes cotangents; ``backward`` is the order of its tasks."""
        return self.backward is not self.structure.top_down


def loops_of(graph: Graph) -> dict[Node, Loop]:
    """Return the loop of every node that must run task by task."""
    nodes = graph.nodes()
    loops: dict[tuple[Structure, bool], Loop] = {}
    for slot in graph.slots:
        key = (slot.structure, slot.backward)
        loops.setdefault(key, Loop(*key))
    result: dict[Node, Loop] = {}
    slot_of = {n: n.attr("slot") for n in nodes if n.op.reads_slot}
    for key, loop in loops.items():
        slots = {s for s in graph.slots if (s.structure, s.backward) == key}
        after = {n for n, slot in slot_of.items() if slot in slots}
        for n in nodes:
            if not after.isdisjoint(n.inputs):
                after.add(n)
        for n in toposort(n for s, n in graph.slots.items() if s in slots):
            if n in after and not is_view(n):
                result[n] = loop
    return result
