"""Lower a body to instructions; elementwise nodes fuse into as few kernels as possible."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field, replace

from cavs.codegen.map import MapOp, MapProgram, Register
from cavs.compiler.instructions import FUSED
from cavs.compiler.program import Instruction, Load, Operand, Program, Store
from cavs.compiler.storage import Storage, name_of
from cavs.compiler.weights import weight_of
from cavs.errors import FAULT, CompileError
from cavs.ir import Domain, Node
from cavs.passes.access import LOCAL_ARRAYS, Piece, outward
from cavs.passes.broadcast_blocks import block, grid
from cavs.passes.partition import Body, Partition, is_elementwise

# operands of a fused kernel: 16 bytes of each are 80 of the 128 registers of a thread
MAX_OPERANDS = 20


@dataclass(eq=False)
class _Group:
    """Elementwise nodes that become one kernel."""

    domain: Domain
    shape: tuple[int, ...]
    step: int
    nodes: list[Node] = field(default_factory=list)


class RowLowering(Storage):
    """Lowers the nodes of one body; chunks of rows run through all of its instructions.

    reached: parameters whose gradients are dense, see `dense_gradients`.
    """

    def __init__(
        self, partition: Partition, program: Program, fuse: bool, reached: Collection[str] = ()
    ) -> None:
        super().__init__(partition, program)
        self.fuse, self.reached = fuse, reached
        self.weights: dict[Node, int] = {}

    def _rows(self, body: Body) -> None:
        """Group the elementwise nodes of ``body`` by step and emit everything in order."""
        inside, self.repeated = set(body.nodes), body.repeated
        group_of: dict[Node, _Group] = {}
        groups: dict[object, _Group] = {}
        step: dict[Node, int] = {}
        for n in body.nodes:
            fused = is_elementwise(n)
            level = 0
            for x, pieces in self.accesses.operands(n):
                for p in pieces:
                    for source in self._inside(p, inside):
                        joined = (
                            self.fuse
                            and fused
                            and x is source
                            and p.map == "self"
                            and _joinable(source, n)
                        )
                        level = max(level, step[source] + (0 if joined else 1))
            step[n] = level
        self._as_late_as_useful(body, step)
        for n in body.nodes:
            domain, shape, level = n.type.domain, _kernel_shape(n), step[n]
            if is_elementwise(n):
                key = (level, domain, shape) if self.fuse else n
                group = groups.setdefault(key, _Group(domain, shape, level))
                group.nodes.append(n)
        for group in groups.values():
            group_of |= {n: part for part in self._parts(group) for n in part.nodes}
        items: list[tuple[int, int, Node | _Group]] = []
        for i, n in enumerate(body.nodes):
            if n not in group_of:
                items.append((step[n], i, n))
            elif group_of[n].nodes[0] is n:
                items.append((step[n], i, group_of[n]))
        stored = self._stored(body, group_of)
        for _, _, item in sorted(items, key=lambda t: t[:2]):
            if isinstance(item, _Group):
                self._map(item, stored)
            else:
                self._single(item)

    def _parts(self, group: _Group) -> list[_Group]:
        """Cut the group where one kernel would read more than MAX_OPERANDS."""
        parts: list[_Group] = []
        read: set[Node] = set()
        computed: set[Node] = set()
        for n in group.nodes:
            inputs = {x for x, _ in self.accesses.operands(n)}
            if not parts or len(read | (inputs - computed)) > MAX_OPERANDS:
                parts.append(replace(group, nodes=[]))
                read, computed = set(), set()
            parts[-1].nodes.append(n)
            read |= inputs - computed
            computed.add(n)
        return parts

    def _as_late_as_useful(self, body: Body, step: dict[Node, int]) -> None:
        """Move elementwise nodes to the latest kernel that can hold them, that of their readers."""
        if not self.fuse:
            return
        latest: dict[Node, int] = {}
        for n in reversed(body.nodes):
            if is_elementwise(n) and not _reduces_axis(n) and n in latest:
                step[n] = max(step[n], latest[n])
            for x, pieces in self.accesses.operands(n):
                for p in pieces:
                    if p.array not in LOCAL_ARRAYS:
                        continue
                    joined = is_elementwise(n) and x is p.source and p.map == "self"
                    limit = step[n] if joined and _joinable(x, n) else step[n] - 1
                    latest[p.source] = min(latest.get(p.source, limit), limit)

    def _inside(self, p: Piece, inside: Container[Node]) -> list[Node]:
        """Return the node of this body that computes a piece; None if another task does."""
        return [p.source] if p.source in inside and p.array in LOCAL_ARRAYS else []

    def _stored(self, body: Body, group_of: dict[Node, _Group]) -> set[Node]:
        """Return the nodes of ``body`` that are read outside of their kernel."""
        stored = set()
        for n in body.nodes:
            if n in self.partition.kept and n not in self.repeated:
                stored.add(n)
        for n in body.nodes:
            for x, pieces in self.accesses.operands(n):
                for p in pieces:
                    together = n in group_of and group_of.get(x) is group_of[n] and p.map == "self"
                    if not together or _reduces_axis(p.source):
                        stored.add(p.source)
        return stored

    def _map(self, group: _Group, stored: set[Node]) -> None:
        """Emit one fused kernel."""
        for n in list(group.nodes):
            if n.op.name == "broadcast" and self._is_joined_copy(n):
                self._joined_copy(n)
                group.nodes.remove(n)
        if not group.nodes:
            return
        outer, inner = grid(group.shape)
        loads: dict[Load, int] = {}
        inputs: dict[tuple[Node, Node], int] = {}
        members = set(group.nodes)
        for n in group.nodes:
            for x, pieces in self.accesses.operands(n):
                if x in members:
                    continue
                load = Load(self.operand(pieces[0]), *_block(x, group.shape))
                inputs[n, x] = loads.setdefault(load, len(loads))
        program = MapProgram(len(loads))
        registers: dict[Node, Register] = {}
        results: dict[Node, tuple[str, Register]] = {}
        for n in group.nodes:
            loaded = {x: Register(program, inputs[n, x]) for x in n.inputs if (n, x) in inputs}
            args = _arguments(program, n, loaded | registers)
            if _reduces_axis(n):
                results[n] = (n.op.reduction, args[0])
            else:
                registers[n] = program.apply(n, args)
                if n in stored:
                    results[n] = ("write", registers[n])
        ops, register_of, count = program.finish({r.number for _, r in results.values()})
        stores = []
        for n, (mode, register) in results.items():
            stride = (1 if mode != "write" else inner) if outer > 1 else 0
            stores.append(Store(self._write(n), 0, stride, mode, register_of[register.number]))
        self.program.instructions.append(
            Instruction(
                FUSED,
                self._space(group.domain),
                loads=list(loads),
                ops=ops,
                stores=stores,
                registers=max(count, 1),
                outer=outer,
                inner=inner,
                label="map " + "+".join(dict.fromkeys(n.op.name for n in group.nodes)),
            )
        )

    def _outward(self, n: Node) -> None:
        """Emit a kernel that computes a value for each edge to a parent, and their sum."""
        outer, inner = grid(n.shape)
        loads: dict[Load, int] = {}
        number = {}
        for x, (piece,) in self.accesses.operands(n):
            load = Load(self.operand(piece), *_block(x, n.shape))
            number[x] = loads.setdefault(load, len(loads))
        program = MapProgram(len(loads))
        registers = {x: Register(program, at) for x, at in number.items()}
        computed = [x for x in outward(n) if x not in registers]
        for x in computed:
            registers[x] = program.apply(x, _arguments(program, x, registers))
        value = registers[n.inputs[0]].number
        ops, register_of, count = program.finish({value})
        stride = inner if outer > 1 else 0
        self.program.instructions.append(
            Instruction(
                FUSED,
                self._space(n.type.domain),
                loads=list(loads),
                ops=ops,
                stores=[Store(self._write(n), 0, stride, "write", register_of[value])],
                registers=max(count, 1),
                outer=outer,
                inner=inner,
                outward=True,
                label="map " + "+".join(dict.fromkeys(x.op.name for x in (*computed, n))),
            )
        )

    def _is_joined_copy(self, n: Node) -> bool:
        x = n.inputs[0]
        return x.op.name != "constant" and len(self.accesses.at(x, n)) > 1

    def _joined_copy(self, n: Node) -> None:
        """Emit a copy of several pieces: one kernel per piece, into adjacent columns."""
        buffer = self._write(n)
        column = 0
        for p in self.accesses.at(n.inputs[0], n):
            self._copy_map(n, self.operand(p), buffer, column, 1, p.width, 0, 0)
            column += p.width

    def _copy_map(
        self,
        n: Node,
        source: Operand | None,
        buffer: int,
        column: int,
        outer: int,
        inner: int,
        load_stride: int,
        store_stride: int,
    ) -> None:
        loads = [] if source is None else [Load(source, load_stride)]
        ops = [MapOp("constant", 0, 0, 0, 0, 0.0)] if source is None else []
        d = n.type.domain
        self.program.instructions.append(
            Instruction(
                FUSED,
                self._space(d),
                loads=loads,
                ops=ops,
                stores=[Store(buffer, column, store_stride, "write", 0)],
                registers=1,
                outer=outer,
                inner=inner,
                label=f"copy {n.op.name}",
            )
        )

    def _single(self, n: Node) -> None:
        """Emit a node that is not fused: a product, a loss, a maximum, a rearrangement."""
        name, d = n.op.name, n.type.domain
        space = self._space(d)
        pieces = [self.operand(p) for _, ps in self.accesses.operands(n) for p in ps]
        add = self.program.instructions.append
        if n.op.rearranges:
            self._rearrange(n)
            return
        if name == "sum_out":
            self._outward(n)
            return
        out = Operand(self._write(n), 0, n.type.width)
        if name == "matmul":
            weight = self._weight(n.inputs[1])
            k, width = n.inputs[1].shape
            label = f"matmul {k}x{width} {name_of(n)}"
            add(Instruction("matmul", space, inputs=pieces, out=out, weight=weight, label=label))
        elif n.op.reduces_segments:
            by = n.op.reduction
            label = f"{by} over {name.removeprefix(f'{by}_')}"
            add(Instruction(f"segment_{by}", space, inputs=pieces, out=out, label=label))
        elif n.op.instruction:
            kind = n.op.instruction
            index = self.program.int_features.index(n.inputs[1].attr("name"))
            add(Instruction(kind, space, inputs=pieces, out=out, argument=index, label=kind))
        else:
            raise CompileError(
                f"operator {name} cannot be lowered",
                where=n.where,
                hint="an operator of your own needs expr=, from which its kernel is generated; or "
                "compose it of those of cavs.ops",
            )

    def _rearrange(self, n: Node) -> None:
        """Emit rank-2 slices and concatenations, pads and transposes as strided copies."""
        buffer = self._write(n)
        outer, size = grid(n.shape)
        column = 0
        if n.op.name == "transpose":
            raise CompileError(
                "a transposed parameter can only be a factor of a product",
                where=n.where,
                hint="multiply by it whole, x @ P.T, or make a parameter of the other shape",
            )
        if n.op.name == "pad":
            self._copy_map(n, None, buffer, 0, outer, size, 0, size)
            column = n.attr("start")
        if n.op.name == "concat" and n.attr("axis") != -1:
            raise CompileError("rows of values cannot be concatenated", where=n.where, hint=FAULT)
        for x, pieces in self.accesses.operands(n):
            inner = n.shape[-1] if n.op.name == "slice" else x.shape[-1]
            source = self.operand(pieces[0])
            start = n.attr("start") if n.op.name == "slice" else 0
            stride = x.shape[-1]
            width = (outer - 1) * stride + inner
            moved = source._replace(column=source.column + start, width=width)
            self._copy_map(n, moved, buffer, column, outer, inner, stride, size)
            column += inner

    def _weight(self, w: Node) -> int:
        if w not in self.weights:
            found, packed = weight_of(w, self.program.parameters), self.program.weights
            if found not in packed:
                packed.append(found)
            self.weights[w] = packed.index(found)
        return self.weights[w]


def _arguments(program: MapProgram, n: Node, registers: Mapping[Node, Register]) -> list[Register]:
    return [
        program.constant(float(x.attr("value"))) if x.op.name == "constant" else registers[x]
        for x in n.inputs
    ]


def _kernel_shape(node: Node) -> tuple[int, ...]:
    return node.inputs[0].shape if _reduces_axis(node) else node.shape


def _joinable(source: Node, reader: Node) -> bool:
    """True if the elementwise ``source`` can be in one kernel with its ``reader``."""
    return (
        is_elementwise(source)
        and not _reduces_axis(source)
        and source.shape == _kernel_shape(reader)
        and source.type.domain == reader.type.domain
    )


def _reduces_axis(node: Node) -> bool:
    return node.op.reduces_axis


def _block(x: Node, shape: tuple[int, ...]) -> tuple[int, bool]:
    """Return how an operand of a fused kernel repeats: outer stride, and one number per block."""
    found = block(x.shape, shape)
    if found is None:
        raise CompileError(
            f"a value of shape {list(x.shape)} is broadcast to {list(shape)} without copies",
            where=x.where,
            hint=FAULT,
        )
    return found
