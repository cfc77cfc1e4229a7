"""Assign values to buffers: parameters, features, the arena with lifetimes, scratch."""

from __future__ import annotations

from cavs.compiler.program import (
    ONE_SPACE,
    PAIRS,
    PAIRS_STRIDE,
    Buffer,
    Operand,
    Program,
    space_of,
    space_selected_by,
)
from cavs.ir import Domain, Link, Node
from cavs.passes.access import OF_GRAPHS, Piece
from cavs.passes.partition import Partition


class Storage:
    """Buffers of a program under construction; ``stage`` is the one being lowered."""

    def __init__(self, partition: Partition, program: Program) -> None:
        self.partition, self.program = partition, program
        self.graph = partition.graph
        self.accesses = partition.accesses
        self.arena: dict[Node, int] = {}
        self.local: dict[Node, int] = {}
        self.leaves: dict[Node, int] = {}
        self.merge_of: dict[Node, Node] = {}
        for n in self.graph.nodes():
            if n.op.name == "merge":
                for x in n.inputs:
                    self.merge_of[x] = n
        self._share_rows()
        self.repeated: set[Node] = set()  # nodes repeated in the body that is lowered
        self.stage = -1
        self.kind: int | None = None  # stands for "all kinds" in a loop

    def _share_rows(self) -> None:
        """Share a buffer between values of, say, first and second children: no row is both."""
        self.shared: dict[Node, Node] = {}
        held: dict[object, list[tuple[Node, set[int]]]] = {}
        for slot, n in self.graph.slots.items():
            if slot.child is None or slot.backward or n.op.name != "merge":
                continue
            if n in self.shared or any(n in (other for other, _ in of) for of in held.values()):
                continue
            kinds, taken = set(n.attr("kinds")), held.setdefault((slot.structure, n.shape), [])
            for other, filled in taken:
                if filled.isdisjoint(kinds):
                    filled.update(kinds)
                    self.shared[n] = other
                    break
            else:
                taken.append((n, kinds))

    def _buffer(self, role: str, index: int, space: int, width: int, name: str) -> int:
        self.program.buffers.append(Buffer(role, index, space, width, name))
        return len(self.program.buffers) - 1

    def _touch(self, buffer: int) -> int:
        b = self.program.buffers[buffer]
        b.first, b.last = min(b.first, self.stage), max(b.last, self.stage)
        return buffer

    def _arena(self, node: Node) -> int:
        """Return the buffer of a kept node; a merged one is stored in the buffer of its merge."""
        home = self.merge_of.get(node, node)
        home = self.shared.get(home, home)
        if home not in self.arena:
            space = self._space_of(home.type.domain)
            self.arena[home] = self._buffer("arena", 0, space, home.type.width, name_of(home))
            self.program.buffers[-1].held = dict(home.attrs).get("held", "all")
        return self._touch(self.arena[home])

    def _leaf(self, node: Node) -> int:
        if node not in self.leaves:
            self.leaves[node] = self._new_leaf(node)
        return self.leaves[node]

    def _new_leaf(self, node: Node) -> int:
        name, d, width = node.op.name, node.type.domain, node.type.width
        p = self.program
        if name == "parameter":
            parameter = node.attr("parameter").name
            index = p.parameters.index(parameter)
            rows = node.shape[0] if len(node.shape) == 2 else 1
            return self._buffer("param", index, ONE_SPACE, width // rows, parameter)
        if name == "feature":
            index = p.float_features.index(node.attr("name"))
            space = self._space_of(d.of_vertices if d.base == "present" else d.of_kind(None))
            return self._buffer("feature", index, space, width, node.attr("name"))
        if name == "count_present":
            index = p.int_features.index(node.inputs[0].attr("name"))
            return self._buffer("count", index, ONE_SPACE, 1, "count")
        if name == "replica_scale":  # see Count in program.h
            return self._buffer("count", -1, ONE_SPACE, 1, "count")
        if name == "count_rows":
            structure = dict(node.attrs).get("structure")
            index = -1 - space_of(node.attr("base"), None)
            index -= 2 * self._number(structure) if structure else 0
            return self._buffer("count", index, ONE_SPACE, 1, "count")
        assert name == "num_children", name
        return self._buffer("ones", 0, ONE_SPACE, 1, "ones")

    def _read(self, node: Node) -> int:
        """Return the buffer to read ``node`` from, in the body that is lowered."""
        if node.op.program_input:
            return self._leaf(node)
        return self.local[node] if node in self.local else self._arena(node)

    def _write(self, node: Node) -> int:
        """Return the buffer to store ``node`` in, in the body that is lowered."""
        again = node in self.local or node in self.repeated
        if node in self.partition.kept and not again:
            return self._arena(node)
        if node not in self.local:
            d = node.type.domain
            space = self._space(d)
            role = "arena" if d.base in ("one", "graph") else "scratch"
            self.local[node] = self._buffer(role, 0, space, node.type.width, name_of(node))
        return self._touch(self.local[node])

    def operand(self, p: Piece) -> Operand:
        """Return a piece as an operand of the engine."""
        buffer = self._read(p.source)
        self._touch(buffer)
        argument = p.argument
        if isinstance(argument, str):
            argument = self.program.int_features.index(argument)
        elif isinstance(argument, Link):
            argument = self.program.structures.links.index(argument)
        elif p.array in OF_GRAPHS:
            argument = self._number(p.source.type.domain.structure)
        return Operand(buffer, p.column, p.width, p.map, p.array, argument)

    def _space(self, domain: Domain) -> int:
        """Return the space of a domain in the body that is lowered."""
        return self._space_of(domain.of_kind(self.kind) if domain.kind is None else domain)

    def _space_of(self, domain: Domain) -> int:
        if isinstance(domain.kind, str):
            return space_selected_by(domain.base, self.program.int_features.index(domain.kind))
        if domain.link is not None:
            link = self.program.structures.links.index(domain.link)
            kind = -1 if domain.kind is None else domain.kind
            return PAIRS + PAIRS_STRIDE * link + kind + 1
        structure = self._number(domain.structure) if domain.structure else None
        return space_of(domain.base, domain.kind, structure)

    def _number(self, structure: str) -> int:
        return self.program.structures.names.index(structure)


def name_of(node: Node) -> str:
    """Return the name of a value in reports: its operator and the user's line."""
    return f"{node.op.name}.{node.where}" if node.where else node.op.name
