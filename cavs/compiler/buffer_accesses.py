"""Reads and writes of buffers by instructions, and when a buffer is dead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cavs.compiler.program import Instruction, Operand, Program, Store, kind_of
from cavs.passes.access import LOCAL_ARRAYS, TO_CHILDREN, TO_PARENTS


class BufferAccess(NamedTuple):
    """A read or write of columns of a buffer by an instruction, in rows of ``kind`` (None: any).

    columns: of the buffer that is reused; ``shift`` behind those that the instruction names. local:
    it reads the rows it runs over, or their edges. ahead: it reads rows of tasks that come later in
    its loop. parents: it reads rows of vertices with children alone. leaf: ``kind`` has none.
    """

    buffer: int
    instruction: Instruction
    stage: int
    body: int
    position: int
    kind: int | None
    columns: range
    shift: int = 0
    write: bool = False
    local: bool = True
    ahead: bool = False
    parents: bool = False
    leaf: bool = False

    def moved(self, column: int) -> BufferAccess:
        """Return the same access to a buffer in which its own begins at ``column``."""
        there = range(self.columns.start + column, self.columns.stop + column)
        return self._replace(columns=there, shift=self.shift + column)


BufferAccesses = dict[int, list[BufferAccess]]  # by buffer


def is_dead(
    writes: Iterable[BufferAccess],
    uses: Sequence[BufferAccess],
    kind: int | None,
    column: int,
    width: int,
) -> bool:
    """True if columns of a buffer of ``kind`` are dead where ``writes`` would fill them."""
    columns = range(column, column + width)
    here = False
    for u in writes:
        if kind is None or u.kind is None or kind == u.kind:
            found = _last_read(u, uses, columns)
            if found == "later":
                return False
            here |= found == "here"
    return here


def _overlap(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def _last_read(write: BufferAccess, uses: Sequence[BufferAccess], columns: range) -> str:
    """Return when rows that ``write`` would overwrite in ``columns`` are read last.

    In stages "before" it, in its own stage no later than it ("here"), or "later".
    """
    end, begin, stop = "before", columns.start, columns.stop
    for u in reversed(uses):  # one that is later tends to be near the end
        if u.columns.start >= stop or begin >= u.columns.stop:
            continue
        if u.kind is not None and write.kind is not None and u.kind != write.kind:
            continue
        if u.parents and write.leaf:
            continue
        if u.stage < write.stage:
            continue
        if u.stage == write.stage and u.ahead:
            end = "here"
            continue
        if u.stage > write.stage or u.body != write.body or u.position > write.position:
            return "later"
        if not u.local:
            return "later"
        if u.position == write.position and not _aligned(u, write.buffer, write.shift + begin):
            return "later"
        end = "here"
    return end


def _aligned(read: BufferAccess, new: int, column: int) -> bool:
    """True if a kernel reads, element by element, what it then overwrites.

    It overwrites with ``new``, which would begin at ``column``.
    """
    i = read.instruction
    if i.traits.in_place and i.out is not None and not read.write:
        # The kernel sums a row before it writes any of it.
        logits, *slope = i.inputs
        begins = logits.column + read.shift == i.out.column + column
        same = begins and logits[2:5] == (i.out.width, "self", "none")
        return same and all(o.buffer != read.buffer for o in slope)
    if not i.traits.fused or i.outward or read.write:
        return False
    stores = [s for s in i.stores if s.buffer == new]
    loads = [(n, *load) for n, load in enumerate(i.loads) if load.operand.buffer == read.buffer]
    kept = {s.register for s in i.stores}  # loads that are stored unchanged

    def disjoint(o: Operand, s: Store) -> bool:
        begin = s.column + column
        there = range(begin, begin + (i.outer - 1) * s.outer_stride + i.inner)
        here = range(o.column + read.shift, o.column + read.shift + o.width)
        return not _overlap(here, there)

    return all(
        disjoint(o, s)
        or (
            s.mode == "write"
            and n not in kept
            and not scalar
            and o.column + read.shift == s.column + column
            and o[2:5] == (i.outer * i.inner, "self", "none")
            and (i.outer == 1 or stride == s.outer_stride == i.inner)
        )
        for s in stores
        for n, o, stride, scalar in loads
    )


def accesses_of(program: Program) -> BufferAccesses:
    """Return all reads and writes of ``program``, in the order of its stages."""
    result: BufferAccesses = defaultdict(list)
    for at, stage in enumerate(program.stages):
        for body, numbers in enumerate(stage.bodies or [stage.body]):
            for position, n in enumerate(numbers):
                i = program.instructions[n]
                kind = kind_of(i.space)
                for o in i.operands:
                    local = o.map != "one" and o.array in LOCAL_ARRAYS
                    rows = kind if local else None
                    read = o.columns
                    ahead = o.array in (TO_CHILDREN if stage.reversed else TO_PARENTS)
                    ahead &= stage.type == "loop"
                    parents = o.array in ("nth_parents", "parents")
                    how = {"local": local, "ahead": ahead, "parents": parents}
                    use = BufferAccess(o.buffer, i, at, body, position, rows, read, **how)
                    result[o.buffer].append(use)
                for x, columns in _stored(i):
                    leaf = kind is not None and program.kinds[kind] % 2 == 0
                    use = BufferAccess(
                        x, i, at, body, position, kind, columns, write=True, leaf=leaf
                    )
                    result[x].append(use)
    return result


def _stored(i: Instruction) -> Iterator[tuple[int, range]]:
    """Return the buffers that an instruction writes, and in which columns."""
    for s in i.stores:
        yield s.buffer, s.columns(i.outer, i.inner)
    if i.out is not None:
        yield i.out.buffer, i.out.columns
