"""Fused elementwise kernels as programs of the engine's block interpreter.

An operator's ``expr`` is run once on symbolic registers; the result is a list of operations over
registers, shared by the CPU interpreter and printed for reports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cavs.ir import Node
from cavs.ops.primitives import operands_of, primitive_of

OpTuple = tuple[str, int, int, int, int, float]  # code, dst, a, b, c, immediate


def reads_of(op: OpTuple) -> tuple[int, ...]:
    """The registers that ``op`` reads."""
    return op[2:5][: operands_of(op[0])]


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
    """Operations over registers; [0, num_loads) hold the loaded operands.

    Doubles as the ``e`` of ``expr``.
    """

    num_loads: int
    ops: list[OpTuple] = field(default_factory=list)
    _next: int = -1
    _constants: dict[float, Register] = field(default_factory=dict)
    _seen: dict[tuple[str, tuple[int, ...], float], Register] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._next = self.num_loads

    def emit(self, code: str, *inputs: Register, imm: float = 0.0) -> Register:
        """Appends one operation, or returns the register that has its result already."""
        numbers = tuple(x.number for x in inputs)
        key = (code, numbers, imm)
        if key not in self._seen:
            a, b, c = (*numbers, 0, 0, 0)[:3]
            self.ops.append((code, self._next, a, b, c, imm))
            self._seen[key] = Register(self, self._next)
            self._next += 1
        return self._seen[key]

    def register_of(self, value: Any) -> Register:
        """``value`` itself, or a register with that number in every element."""
        return value if isinstance(value, Register) else self.constant(float(value))

    def constant(self, value: float) -> Register:
        """A number."""
        return self.emit("constant", imm=value)

    def uniform(self, stream: int) -> Register:
        """Counter-based uniform numbers of a stream."""
        return self.emit("uniform", imm=float(stream))

    def __getattr__(self, method: str) -> Callable[..., Register]:
        code = primitive_of(method)
        return lambda *inputs: self.emit(code, *map(self.register_of, inputs))

    def apply(self, node: Node, inputs: list[Register]) -> Register:
        """The operations of one elementwise node."""
        assert node.op.expr is not None
        result = node.op.expr(self, *inputs, **dict(node.attrs))
        return self.register_of(result)

    def finish(self, stored: set[int]) -> tuple[list[OpTuple], dict[int, int], int]:
        """Drops unread operations, fuses multiply-adds and reuses registers.

        Returns the operations, where each of the ``stored`` registers ended up, and how many
        registers there are.
        """
        ops = self._fuse_multiply_add(self._live(stored), stored)
        last: dict[int, int] = {r: len(ops) for r in stored}
        for i, (_, _, *inputs, _) in reversed(list(enumerate(ops))):
            for r in inputs[: operands_of(ops[i][0])]:
                last.setdefault(r, i)
        place = {r: r for r in range(self.num_loads)}
        free: list[int] = []
        count = self.num_loads
        result: list[OpTuple] = []
        for i, (code, dst, *inputs, imm) in enumerate(ops):
            used = inputs[: operands_of(code)]
            a, b, c = ([place[r] for r in used] + [0, 0, 0])[:3]
            if free:
                place[dst] = free.pop()
            else:
                place[dst], count = count, count + 1
            result.append((code, place[dst], a, b, c, imm))
            for r in set(used):
                if last[r] == i and r >= self.num_loads:
                    free.append(place[r])
        return result, {r: place[r] for r in stored}, count

    def _live(self, stored: set[int]) -> list[OpTuple]:
        needed = set(stored)
        kept = []
        for op in reversed(self.ops):
            if op[1] in needed:
                kept.append(op)
                needed.update(reads_of(op))
        return kept[::-1]

    def _fuse_multiply_add(self, ops: list[OpTuple], stored: set[int]) -> list[OpTuple]:
        reads: dict[int, int] = {r: 1 for r in stored}
        for op in ops:
            for r in reads_of(op):
                reads[r] = reads.get(r, 0) + 1
        made = {op[1]: op for op in ops}
        dropped: set[int] = set()
        result = []
        for op in ops:
            product = None
            if op[0] == "add":
                for x, y in ((op[2], op[3]), (op[3], op[2])):
                    found = made.get(x)
                    if found and found[0] == "mul" and reads[x] == 1 and x not in dropped:
                        product = ("fma", op[1], found[2], found[3], y, 0.0)
                        dropped.add(x)
                        break
            result.append(product or op)
        return [op for op in result if op[1] not in dropped]
