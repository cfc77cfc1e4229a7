"""Fused elementwise kernels as programs of the engine's block interpreter.

An operator's ``expr`` is run once on symbolic registers; the result is a list of operations over
registers, shared by the CPU interpreter and printed for reports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cavs.ir import Node
from cavs.ops.primitives import operands_of, primitive_of


class MapOp(NamedTuple):
    """An operation: register ``dst`` = ``code`` of registers a, b and c, and of a number."""

    code: str
    dst: int
    a: int
    b: int
    c: int
    imm: float


def reads_of(op: MapOp) -> tuple[int, ...]:
    """Return the registers that ``op`` reads."""
    return (op.a, op.b, op.c)[: operands_of(op.code)]


@dataclass(frozen=True)
class Register:
    """A symbolic value: one block of columns in a register of the interpreter."""

    program: MapProgram
    number: int

    def _binary(self, code: str, other: Any, swapped: bool = False) -> Register:
        b = self.program.register_of(other)
        x, y = (b, self) if swapped else (self, b)
        return self.program.emit(code, x, y)

    def __add__(self, other: Any) -> Register:
        return self._binary("add", other)

    def __radd__(self, other: Any) -> Register:
        return self._binary("add", other, True)

    def __sub__(self, other: Any) -> Register:
        return self._binary("sub", other)

    def __rsub__(self, other: Any) -> Register:
        return self._binary("sub", other, True)

    def __mul__(self, other: Any) -> Register:
        return self._binary("mul", other)

    def __rmul__(self, other: Any) -> Register:
        return self._binary("mul", other, True)

    def __truediv__(self, other: Any) -> Register:
        return self._binary("div", other)

    def __rtruediv__(self, other: Any) -> Register:
        return self._binary("div", other, True)

    def __neg__(self) -> Register:
        return self.program.emit("neg", self)


@dataclass
class MapProgram:
    """Operations over registers; registers [0, num_loads) hold the loaded operands.

    It is also the ``e`` of ``expr``.
    """

    num_loads: int
    ops: list[MapOp] = field(default_factory=list)
    _next: int = -1
    _constants: dict[float, Register] = field(default_factory=dict)
    _seen: dict[tuple[str, tuple[int, ...], float], Register] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._next = self.num_loads

    def emit(self, code: str, *inputs: Register, imm: float = 0.0) -> Register:
        """Append one operation, or return the register that has its result already."""
        numbers = tuple(x.number for x in inputs)
        key = (code, numbers, imm)
        if key not in self._seen:
            a, b, c = (*numbers, 0, 0, 0)[:3]
            self.ops.append(MapOp(code, self._next, a, b, c, imm))
            self._seen[key] = Register(self, self._next)
            self._next += 1
        return self._seen[key]

    def register_of(self, value: Any) -> Register:
        """Return ``value`` itself, or a register with that number in every element."""
        return value if isinstance(value, Register) else self.constant(float(value))

    def constant(self, value: float) -> Register:
        """A number."""
        return self.emit("constant", imm=value)

    def column(self) -> Register:
        """Return the numbers of the elements of the last axis, from 0."""
        return self.emit("column")

    def uniform(self, stream: int) -> Register:
        """Counter-based uniform numbers of a stream."""
        return self.emit("uniform", imm=float(stream))

    def __getattr__(self, method: str) -> Callable[..., Register]:
        code = primitive_of(method)
        return lambda *inputs: self.emit(code, *map(self.register_of, inputs))

    def apply(self, node: Node, inputs: list[Register]) -> Register:
        """Append the operations of one elementwise node."""
        assert node.op.expr is not None
        result = node.op.expr(self, *inputs, **dict(node.attrs))
        return self.register_of(result)

    def finish(self, stored: set[int]) -> tuple[list[MapOp], dict[int, int], int]:
        """Drop unread operations, fuse multiply-adds and reuse registers.

        Return the operations, the final register of each of ``stored``, and the number of
        registers.
        """
        ops = self._fuse_multiply_add(self._live(stored), stored)
        last: dict[int, int] = {r: len(ops) for r in stored}
        for i, op in reversed(list(enumerate(ops))):
            for r in reads_of(op):
                last.setdefault(r, i)
        renamed = {r: r for r in range(self.num_loads)}
        free: list[int] = []
        count = self.num_loads
        result: list[MapOp] = []
        for i, op in enumerate(ops):
            used = reads_of(op)
            a, b, c = ([renamed[r] for r in used] + [0, 0, 0])[:3]
            if free:
                renamed[op.dst] = free.pop()
            else:
                renamed[op.dst], count = count, count + 1
            result.append(MapOp(op.code, renamed[op.dst], a, b, c, op.imm))
            for r in set(used):
                if last[r] == i and r >= self.num_loads:
                    free.append(renamed[r])
        return result, {r: renamed[r] for r in stored}, count

    def _live(self, stored: set[int]) -> list[MapOp]:
        needed = set(stored)
        kept = []
        for op in reversed(self.ops):
            if op.dst in needed:
                kept.append(op)
                needed.update(reads_of(op))
        return kept[::-1]

    def _fuse_multiply_add(self, ops: list[MapOp], stored: set[int]) -> list[MapOp]:
        reads: dict[int, int] = {r: 1 for r in stored}
        for op in ops:
            for r in reads_of(op):
                reads[r] = reads.get(r, 0) + 1
        made = {op.dst: op for op in ops}
        dropped: set[int] = set()
        result = []
        for op in ops:
            product = None
            if op.code == "add":
                for x, y in ((op.a, op.b), (op.b, op.a)):
                    found = made.get(x)
                    if found and found.code == "mul" and reads[x] == 1 and x not in dropped:
                        product = MapOp("fma", op.dst, found.a, found.b, y, 0.0)
                        dropped.add(x)
                        break
            result.append(product or op)
        return [op for op in result if op.dst not in dropped]
