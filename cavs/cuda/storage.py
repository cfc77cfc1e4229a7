"""Choice of the values between kernels that ``precision="bfloat16"`` stores in bfloat16."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from cavs.codegen.map import reads_of
from cavs.compiler.program import GRAPH_SPACE, Instruction, Program

NARROWEST = 8  # values per row; narrower rows would save too little


def half_buffers(program: Program) -> frozenset[int]:
    """Return the buffers of ``program`` to store in bfloat16: rows of vertices and of edges.

    All others stay float32: parameters, gradients, features, outputs, values of graphs and of the
    batch (such as the loss), logits of a cross entropy, sums and maxima of fused kernels, and the
    operands of maxima.
    """
    stored = {
        n
        for n, b in enumerate(program.buffers)
        if b.role in ("arena", "scratch") and b.space > GRAPH_SPACE and b.width >= NARROWEST
    }
    stored -= {program.loss, *program.outputs.values()}
    for i in program.instructions:
        if i.traits.labels:
            stored -= {o.buffer for o in i.inputs}
        stored -= {s.buffer for s in i.stores if s.mode != "write"}
    return frozenset(stored - _compared(program))


def _compared(program: Program) -> set[int]:
    """Return the buffers that decide which value is a maximum: the gradient finds it by equality.

    The gradient may recompute a value. It is equal only if all values that fused kernels pass on to
    it are those that were in registers before; the result of a product is stored once and read by
    all.
    """
    makers: dict[int, list[tuple[Instruction, int]]] = defaultdict(
        list
    )  # with the register of the value
    found: list[int] = []
    for i in program.instructions:
        for s in i.stores:
            makers[s.buffer].append((i, s.register))
            if s.mode == "max":
                found += _reach(i, [s.register])
        found += _reach(i, [], "equal")
        if i.traits.compares and i.out is not None:
            found += [i.out.buffer, *(o.buffer for o in i.inputs)]
            makers[i.out.buffer] += []
    compared: set[int] = set()
    while found:
        buffer = found.pop()
        if buffer in compared or buffer not in makers:
            continue
        compared.add(buffer)
        if program.buffers[buffer].role == "scratch":  # others are stored, not recomputed
            for i, register in makers[buffer]:
                found += _reach(i, [register])
    return compared


def _reach(i: Instruction, registers: Iterable[int], code: str = "") -> list[int]:
    """Return the buffers from which a fused kernel computes ``registers``, and reads ``code``."""
    wanted = set(registers)
    for op in reversed(i.ops):
        if op.code == code or op.dst in wanted:
            wanted.discard(op.dst)
            wanted.update(reads_of(op))
    return [load.operand.buffer for n, load in enumerate(i.loads) if n in wanted]
