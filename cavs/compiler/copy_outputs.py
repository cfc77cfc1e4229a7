"""Copy outputs to the caller chunk by chunk, where only the stage that computes them uses them."""

from __future__ import annotations

from cavs.compiler.program import (
    Program,
    Stage,
    instructions_of,
    kind_of,
    relation_of,
    touches,
    written,
)


def copy_outputs(program: Program) -> None:
    """Move outputs of ``program`` from the arena to scratch, in place, where one stage uses them.

    The engine copies the rows of a chunk to the caller while they are in the cache. Such an output
    takes no memory of its own, and its values are written to memory once, not twice.
    """
    for number in {*program.outputs.values()} - {program.loss}:
        buffer = program.buffers[number]
        vertices = buffer.space > 1 and relation_of(buffer.space) is None
        if not vertices or kind_of(buffer.space) is not None or buffer.role != "arena":
            continue
        stages = [s for s in program.stages if _touches(program, s, number)]
        if len(stages) == 1 and _is_local(program, stages[0], number, buffer.space):
            buffer.role = "scratch"


def _touches(program: Program, stage: Stage, buffer: int) -> bool:
    return any(buffer in keys for keys in touches(program, instructions_of(stage)))


def _is_local(program: Program, stage: Stage, buffer: int, space: int) -> bool:
    """True if a stage writes all rows of a buffer and reads each as its own row alone."""
    if stage.type != "rows" or stage.space != space:
        return False
    found = [program.instructions[i] for i in stage.body]
    reads = [o for i in found for o in i.operands if o.buffer == buffer]
    return all(o.map == "self" for o in reads) and all(
        i.space == space for i in found if buffer in written(i)
    )
