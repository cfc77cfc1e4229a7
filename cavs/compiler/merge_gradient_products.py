"""Merge the products that add to a parameter's gradient, of all kinds of vertices, into one."""

from __future__ import annotations

from collections import defaultdict

from cavs.compiler.program import Program, instructions_of, touches, window


def merge_gradient_products(program: Program, concurrent: bool = False) -> None:
    """Move the products that add to a gradient into the stage of the last of them, in place.

    The engine computes a stage as one product: where several of them add to the same part of the
    gradient, their rows are stacked. The product that covers most of the gradient comes first.

    concurrent: sums run concurrently with loops, so that a product that is ready before a loop is
    not merged with one behind it.
    """
    stages = program.stages
    groups: dict[int, list[int]] = defaultdict(list)  # stages by gradient
    for at, stage in enumerate(stages):
        i = program.instructions[stage.body[0]] if stage.type == "global" else None
        if i is None or not i.traits.product or i.out is None:
            continue
        if program.buffers[i.out.buffer].role == "grad":
            groups[i.out.buffer].append(at)

    def reached(n: int) -> int:
        rows, columns = window(program, program.instructions[n])
        return len(rows) * len(columns)

    touched = [touches(program, instructions_of(s)) for s in stages]

    def may_wait(at: int, last: int) -> bool:
        """True if until ``last`` the gradient is only added to and what is read stays unchanged."""
        reads, writes = touched[at]
        for between in range(at + 1, last):
            r, w = touched[between]
            adds = stages[between].type != "rows"
            if concurrent and stages[between].type == "loop":
                return False
            if w & reads or r & writes or (w & writes and not adds):
                return False
        return True

    merged = set()
    for *earlier, last in groups.values():
        joined = [at for at in earlier if may_wait(at, last)]
        merged.update(joined)
        body = [n for at in (*joined, last) for n in stages[at].body]
        body.sort(key=reached, reverse=True)
        stages[last].body = body
    program.stages[:] = [stage for at, stage in enumerate(stages) if at not in merged]
