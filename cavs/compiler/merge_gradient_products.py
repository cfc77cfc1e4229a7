"""Every parameter gradient one product over the batch, whatever kinds of vertices reach it."""

from __future__ import annotations

from collections import defaultdict

from cavs.compiler.program import Program, instructions_of, touches, window


def merge_gradient_products(program: Program, beside: bool = False) -> None:
    """Puts the products that add to a gradient into the stage of the last of them, in place.

    The engine computes a stage as one product: where several of them reach a part of the gradient,
    their rows stand one below the other. The one that reaches most of it comes first.

    beside: what is known before a loop stays apart from what is known behind it, for it may run
    beside that loop.
    """
    stages = program.stages
    groups: dict[int, list[int]] = defaultdict(list)  # by gradient
    for at, stage in enumerate(stages):
        i = program.instructions[stage.body[0]] if stage.kind == "global" else None
        if i is None or i.kind != "matmul_tn" or i.out is None:
            continue
        if program.buffers[i.out[0]].role == "grad":
            groups[i.out[0]].append(at)

    def reached(n: int) -> int:
        rows, columns = window(program, program.instructions[n])
        return len(rows) * len(columns)

    touched = [touches(program, instructions_of(s)) for s in stages]

    def may_wait(at: int, last: int) -> bool:
        """Whether until ``last`` the gradient is only added to and what is read for it stays."""
        reads, writes = touched[at]
        for between in range(at + 1, last):
            r, w = touched[between]
            adds = stages[between].kind != "rows"
            if beside and stages[between].kind == "loop":
                return False
            if w & reads or r & writes or (w & writes and not adds):
                return False
        return True

    gone = set()
    for *earlier, last in groups.values():
        joined = [at for at in earlier if may_wait(at, last)]
        gone.update(joined)
        body = [n for at in (*joined, last) for n in stages[at].body]
        body.sort(key=reached, reverse=True)
        stages[last].body = body
    program.stages[:] = [stage for at, stage in enumerate(stages) if at not in gone]
