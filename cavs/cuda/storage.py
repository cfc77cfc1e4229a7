"""Which values between kernels are stored in bfloat16, with ``precision="bfloat16"``."""

from __future__ import annotations

from cavs.compiler.program import GRAPH_SPACE, Program

NARROWEST = 8  # values of a row: fewer are 16 bytes at most, of which half saves nothing


def half_buffers(program: Program) -> frozenset[int]:
    """The buffers of ``program`` that are stored in bfloat16: rows of vertices and of edges.

    All others stay float32: parameters, gradients and features, what a run gives back, values of
    graphs and of the batch (the loss), and what is added up or compared: logits of a cross entropy,
    sums and maxima of a fused kernel, the operand and the result of a maximum over segments.
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
        maxima = {register for *_, mode, register in i.stores if mode == "max"}
        stored -= {
            buffer
            for buffer, *_, mode, register in i.stores
            if mode != "write" or register in maxima
        }
    return frozenset(stored)
