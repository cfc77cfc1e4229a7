"""Which values between kernels are stored in bfloat16, with ``precision="bfloat16"``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from cavs.codegen.map import reads_of
from cavs.compiler.program import GRAPH_SPACE, Instruction, Program

NARROWEST = 8  # values of a row: fewer are 16 bytes at most, of which little is saved


def half_buffers(program: Program) -> frozenset[int]:
    """The buffers of ``program`` that are stored in bfloat16: rows of vertices and of edges.

    All others stay float32: parameters, gradients and features, what a run gives back, values of
    graphs and of the batch (the loss among them), logits of a cross entropy, sums and maxima of
    fused kernels, and what maxima are made of.
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
    """What decides which value a maximum is: backward, that is told by equality.

    There a value may be computed anew. It is equal only if all that fused kernels hand on to it is
    what they had in registers before; a product is read from memory by all, and made once.
    """
    makers: dict[int, list[tuple[Instruction, int]]] = defaultdict(list)  # and the register
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
        if program.buffers[buffer].role == "scratch":  # the others are kept, not made anew
            for i, register in makers[buffer]:
                found += _reach(i, [register])
    return compared


def _reach(i: Instruction, registers: Iterable[int], code: str = "") -> list[int]:
    """The buffers of which a fused kernel makes ``registers``, and what its ``code`` reads."""
    wanted = set(registers)
    for op in reversed(i.ops):
        if op.code == code or op.dst in wanted:
            wanted.discard(op.dst)
            wanted.update(reads_of(op))
    return [load.operand.buffer for n, load in enumerate(i.loads) if n in wanted]
