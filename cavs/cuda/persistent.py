"""Persistent kernels: which loops can have one, and where its blocks wait for each other.

A block has the same slice of the columns of all results that are cut alike (see
cavs.codegen.persistent), so an instruction that reads the columns that it writes needs only its own
block. All blocks wait at a barrier of the grid before an instruction that reads values of another
block, or overwrites values that another block may still read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from cavs.codegen.persistent import (
    PRODUCTS,
    TILE_ROWS,
    WARPS,
    Moved,
    Near,
    Part,
    Result,
    Slices,
    columns_part,
    kernel_text,
    map_part,
    module_text,
    product_part,
    product_shape,
    slices_of,
)
from cavs.compiler.program import Instruction, Operand, Program, Stage, written
from cavs.compiler.text import cuda_operands

MOST_PARAMETERS = 4000  # bytes of kernel parameters that every driver supports
MOST_SOURCES = 8
_BYTES = {"Sources": 392, "Rows": 48}  # sizes of arguments that are not words

# Rows that an operand reads, relative to a task: its own, or those of vertices below or above.
OWN, BELOW, ABOVE = "own", "below", "above"
_RELATION = {
    "none": OWN, "parent": OWN, "parent_if_nth": OWN, "nth_edge": OWN, "edges": OWN,
    "child": BELOW, "nth_child": BELOW, "nth_leaf": BELOW, "children": BELOW,
    "out": ABOVE, "parents": ABOVE, "nth_parents": ABOVE,
}  # fmt: skip


@dataclass(frozen=True)
class Access:
    """Columns [begin, end) of a buffer that an instruction reads or writes.

    rows: OWN, BELOW or ABOVE. slices: how blocks divide the columns; None if a block may access
    any.
    """

    buffer: int
    begin: int
    end: int
    write: bool
    rows: str
    slices: Slices | None

    def same_block(self, other: Access) -> bool:
        """True if both access common values in the same block."""
        if self.slices is None or self.slices != other.slices:
            return False
        return (self.begin - other.begin) % self.slices.period == 0


@dataclass(frozen=True)
class PersistentLoop:
    """The persistent kernel of a loop.

    stage: number of the loop. name, text: those of the kernel. blocks: size of its grid, one per
    slice. shared: bytes of dynamic shared memory. instructions: in the order of its parameters.
    barriers: number of barriers of the grid in a task of each kind of vertices. products, resident:
    all products, and those whose weights stay in shared memory.
    """

    stage: int
    name: str
    text: str
    blocks: int
    shared: int
    instructions: tuple[int, ...]
    barriers: tuple[int, ...]
    products: tuple[int, ...]
    resident: tuple[int, ...]


@dataclass(frozen=True)
class DeviceSpec:
    """Limits of a kernel: multiprocessors, bytes of shared memory per block, and rows of a task."""

    multiprocessors: int
    shared: int
    rows: int


def persistent_loops(
    program: Program, spec: DeviceSpec, real: str, precision: str, half: Collection[int] = ()
) -> list[PersistentLoop]:
    """Return the persistent kernels of the loops of ``program`` on ``spec``.

    real: "float" or "double". precision: of float32 products, a key of ``PRODUCTS``. half: buffers
    that are stored in bfloat16. Loops with an unsupported instruction, or with more parameters than
    a driver supports, have none.
    """
    found = []
    for number, stage in enumerate(program.stages):
        if stage.type == "loop":
            loop = _Loop(program, number, stage, spec, real, precision, half).make()
            found += [] if loop is None else [loop]
    return found


def persistent_text(loops: Sequence[PersistentLoop], real: str, half: bool) -> str:
    """Return a module of the kernels; it includes persistent.cuh."""
    return module_text([loop.text for loop in loops], real, half)


class _Loop:
    def __init__(
        self,
        program: Program,
        number: int,
        stage: Stage,
        spec: DeviceSpec,
        real: str,
        precision: str,
        half: Collection[int],
    ) -> None:
        self.program, self.number, self.stage, self.spec = program, number, stage, spec
        self.real, self.half = real, half
        self.multiply = "InTurn" if real == "double" else PRODUCTS[precision]
        self.value = 8 if real == "double" else 4
        self.packed = 2 if precision == "bfloat16" else self.value
        self.of = {n: program.instructions[n] for body in stage.bodies for n in body}
        self.written = {b for i in self.of.values() for b in written(i)}

    def make(self) -> PersistentLoop | None:
        if not self.of or not all(self._is_supported(i) for i in self.of.values()):
            return None
        inner = [i.inner for i in self.of.values() if i.traits.fused and i.outer == 1]
        made = [i.out.width for i in self.of.values() if i.out is not None]
        self.period = max(inner or made, default=1)
        self.unit = slices_of(self.period, self.spec.multiprocessors)
        self.blocks = -(-self.period // self.unit.unit)
        cut = {n: self._slices(i) for n, i in self.of.items()}
        touched = self._bodies(cut)
        room = self._room(cut)
        self.near, near = self._lay_out_near(touched, self.spec.shared - room)
        at, used = self._lay_out_weights(cut, self.spec.shared - room - near)
        parts = {n: self._part(n, cut[n], at.get(n)) for n in self.of}
        if sum(map(_bytes_of, (p for part in parts.values() for p in part.parameters))) > (
            MOST_PARAMETERS
        ):
            return None
        waits = barriers(touched, self._scratch(), self.stage.reversed)
        bodies = [
            [(parts[n], w) for n, w in zip(body, waits[k], strict=True)]
            for k, body in enumerate(self.stage.bodies)
        ]
        name = f"persistent_{self.number}"
        return PersistentLoop(
            self.number,
            name,
            kernel_text(name, bodies, used, used + room),
            self.blocks,
            used + room + near,
            tuple(n for body in self.stage.bodies for n in body),
            tuple(map(sum, waits)),
            tuple(self._products(cut)),
            tuple(sorted(at)),
        )

    def _is_supported(self, i: Instruction) -> bool:
        """True if a kernel can run the instruction and knows the rows of its operands."""
        if not i.traits.walked or i.outward or len(i.inputs) > MOST_SOURCES:
            return False
        buffers = self.program.buffers
        inside = [o for o in i.operands if o.buffer in self.written]
        known = all(o.array in _RELATION and o.map != "one" for o in inside)
        return known and all(buffers[b].role in ("arena", "scratch") for b in written(i))

    def _slices(self, i: Instruction) -> Slices | None:
        """Return how its columns are cut; None for a kernel whose rows all threads share."""
        if i.traits.fused:
            reduces = any(store.mode != "write" for store in i.stores)
            if i.outer != 1 or reduces or 4 * i.inner < self.period:
                return None
            return slices_of(i.inner, self.blocks)
        assert i.out is not None
        n = i.out.width
        if n % self.period == 0 and i.traits.product:
            return self.unit
        return slices_of(n, self.blocks)

    def _product(self, n: int, slices: Slices) -> tuple[int, int, int]:
        i = self.of[n]
        assert i.out is not None
        return product_shape([o.width for o in i.inputs], i.out.width, slices)

    def _products(self, cut: dict[int, Slices | None]) -> dict[int, Slices]:
        return {n: s for n, s in cut.items() if s and self.of[n].traits.product}

    def _room(self, cut: dict[int, Slices | None]) -> int:
        """Return the size in bytes of the sums of all warps."""
        each = [self._product(n, slices)[2] for n, slices in self._products(cut).items()]
        return max((WARPS * TILE_ROWS * (8 * n + 2) * self.value for n in each), default=0)

    def _lay_out_weights(
        self, cut: dict[int, Slices | None], room: int
    ) -> tuple[dict[int, int], int]:
        """Return positions of the weights that fit into shared memory, in values; their bytes."""
        at: dict[int, int] = {}
        used = 0
        for n, slices in self._products(cut).items():
            chunks, eights, _ = self._product(n, slices)
            size = chunks * eights * 32 * 4
            if (used + size) * self.packed <= room:
                at[n] = used
                used += size
        return at, used * self.packed

    def _lay_out_near(
        self, touched: Sequence[Sequence[Sequence[Access]]], room: int
    ) -> tuple[dict[int, Near], int]:
        """Return the scratch in shared memory, of which a block reads only its own writes.

        And its bytes, at most a quarter of all.
        """
        found: dict[int, Near] = {}
        used = 0
        read_from_memory = {o.buffer for i in self.of.values() for o in i.inputs}
        for buffer in sorted(self._scratch() - read_from_memory):
            of = [a for body in touched for i in body for a in i if a.buffer == buffer]
            slices, width = of[0].slices, self.program.buffers[buffer].width
            own = all(a.same_block(of[0]) for a in of)
            if slices is None or not own or of[0].begin % slices.period or width % slices.period:
                continue
            stride = width // slices.period * slices.unit
            size = -(-self.spec.rows * stride // 4) * 4
            if (used + size) * self.value <= room // 4:
                found[buffer] = Near(used, stride, slices, self._first(buffer))
                used += size
        return found, used * self.value

    def _located(self, x: Moved, buffer: int) -> Moved:
        near = self.near.get(buffer)
        return near.load_or_store(x) if near else replace(x, first=self._first(buffer))

    def _first(self, buffer: int) -> str:
        b = self.program.buffers[buffer]
        return "" if b.role != "scratch" else "edge0" if b.space % 2 else "vertex0"

    def _part(self, number: int, slices: Slices | None, at: int | None) -> Part:
        i = self.of[number]
        edges = bool(i.space % 2)
        if i.traits.fused:
            loads, stores = cuda_operands(self.program, i, self.half)
            read, made = [x.operand.buffer for x in i.loads], [store.buffer for store in i.stores]
            loads = [self._located(x, b) for x, b in zip(loads, read, strict=True)]
            stores = [self._located(x, b) for x, b in zip(stores, made, strict=True)]
            buffers = {f"x{n}": b for n, b in enumerate(read)}
            buffers |= {f"y{n}": b for n, b in enumerate(made)}
            kept = {name: self.near[b] for name, b in buffers.items() if b in self.near}
            how = i.outer, i.inner, slices, kept, self.real
            return map_part(number, edges, loads, i.ops, stores, *how)
        assert i.out is not None and slices is not None
        buffer = i.out.buffer
        near = self.near.get(buffer)
        half, first_row = buffer in self.half, self._first(buffer)
        out = Result(i.out.width, half, first_row, i.accumulate, near)
        first = [self._first(o.buffer) for o in i.inputs]
        if i.traits.product:
            widths = [o.width for o in i.inputs]
            return product_part(number, edges, widths, first, out, slices, at, self.multiply)
        return columns_part(number, i.traits.columns, edges, first[0], out, slices)

    def _scratch(self) -> set[int]:
        return {b for b in self.written if self.program.buffers[b].role == "scratch"}

    def _bodies(self, cut: dict[int, Slices | None]) -> list[list[list[Access]]]:
        return [[self._accesses(n, cut[n]) for n in body] for body in self.stage.bodies]

    def _accesses(self, number: int, slices: Slices | None) -> list[Access]:
        """Return the accesses of an instruction to buffers that the loop writes."""
        i = self.of[number]
        found = []

        def read(o: Operand, end: int, cut: Slices | None) -> None:
            if o.buffer in self.written:
                found.append(Access(o.buffer, o.column, end, False, _RELATION[o.array], cut))

        for o in i.inputs:  # a product reads all columns of its operands
            read(o, o.columns.stop, slices if not i.traits.product else None)
        for o, outer_stride, scalar in i.loads:
            end = o.column + (i.outer - 1) * outer_stride + (1 if scalar else i.inner)
            read(o, end, None if scalar else slices)
        for s in i.stores:
            end = s.columns(i.outer, i.inner).stop
            found.append(Access(s.buffer, s.column, end, True, OWN, slices))
        if i.out is not None:
            columns = i.out.columns
            found.append(Access(i.out.buffer, columns.start, columns.stop, True, OWN, slices))
        return found


def _bytes_of(parameter: str) -> int:
    type_ = parameter.rpartition(" ")[0].rpartition(" ")[2]
    return _BYTES.get(type_, 8)


def barriers(
    bodies: Sequence[Sequence[Sequence[Access]]],
    scratch: Collection[int],
    reverse: bool,
) -> list[list[bool]]:
    """Return for each instruction of each body True if a barrier of the grid must precede it.

    bodies: the accesses of each instruction, one body per kind. Tasks of all kinds follow each
    other in any order, so the accesses after one kind are assumed before each.
    """
    before: set[Access] = set()  # accesses of earlier tasks since the last barrier
    while True:
        waits, left = [], set(before)
        for body in bodies:
            earlier, own, found = set(before), set[Access](), []
            for accesses in body:
                wait = any(
                    _clash(a, b, same, scratch, reverse) and not a.same_block(b)
                    for b in accesses
                    for of, same in ((earlier, False), (own, True))
                    for a in of
                )
                if wait:
                    earlier, own = set(), set()
                own.update(accesses)
                found.append(wait)
            waits.append(found)
            left |= earlier | own
        if left == before:
            return waits
        before = left


def _clash(a: Access, b: Access, same_task: bool, scratch: Collection[int], reverse: bool) -> bool:
    """True if ``a``, then ``b`` in the same task or a later one, may access the same value.

    Reversed loops run from the vertices above to those below.
    """
    if a.buffer != b.buffer or not (a.write or b.write):
        return False
    if a.end <= b.begin or b.end <= a.begin:
        return False
    if a.buffer in scratch:
        return True
    if same_task:  # its own rows are neither below nor above
        return a.rows == b.rows
    done, coming = (ABOVE, BELOW) if reverse else (BELOW, ABOVE)
    return (a.rows == OWN and b.rows == done) or (a.rows == coming and b.rows == OWN)


def describe(loops: Iterable[PersistentLoop]) -> list[str]:
    """Return a line for each with its use of the chip."""
    return [
        f"stage {loop.stage}: {loop.blocks} blocks, "
        f"{loop.shared} bytes of shared memory, barriers a task: "
        f"{', '.join(map(str, loop.barriers))}; weights on the chip of "
        f"{len(loop.resident)} of {len(loop.products)} products"
        for loop in loops
    ]
