"""Which values between kernels are stored in bfloat16, with ``precision="bfloat16"``."""

from __future__ import annotations

from cavs.codegen.map import reads_of
from cavs.compiler.program import GRAPH_SPACE, Instruction, Program

NARROWEST = 8  # values of a row: fewer are 16 bytes at most, of which little is saved


def half_buffers(program: Program) -> frozenset[int]:
    """The buffers of ``program`` that are stored in bfloat16: rows of vertices and of edges.

    All others stay float32: parameters, gradients and features, what a run gives back, values of
    graphs and of the batch (the loss among them), logits of a cross entropy, sums and maxima of
    fused kernels, and what decides where a maximum came from.
    """
    stored = {
        n
        for n, b in enumerate(program.buffers)
        if b.role in ("arena", "scratch") and b.space > GRAPH_SPACE and b.width >= NARROWEST
    }
    stored -= {program.loss, *program.outputs.values()}
    for i in program.instructions:
        if i.kind in ("cross_entropy", "cross_entropy_grad", "segment_max"):
            stored -= {o[0] for o in i.inputs}
        if i.kind == "segment_max" and i.out is not None:
            stored.discard(i.out[0])
        stored -= {buffer for buffer, *_, mode, _ in i.stores if mode != "write"}
        stored -= _compared(i)
    return frozenset(stored)


def _compared(i: Instruction) -> set[int]:
    """What a fused kernel tests for equality: whether it is the maximum made of it before.

    That may be computed anew, from values that must be those of then.
    """
    registers: set[int] = set()
    for op in reversed(i.ops):
        if op[0] == "equal" or op[1] in registers:
            registers.discard(op[1])
            registers.update(reads_of(op))
    return {load[0][0] for n, load in enumerate(i.loads) if n in registers}
