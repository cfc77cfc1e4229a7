"""Store buffers in columns of other buffers."""

from __future__ import annotations

from cavs.compiler.program import Operand, Program, Store, clone

Alias = tuple[int, int]  # a buffer, and the column where another one begins in it


def alias_buffers(program: Program, aliases: dict[int, Alias]) -> None:
    """Replace the buffers in ``aliases`` by columns of the buffers that they name."""
    if not aliases:
        return
    kept = [n for n in range(len(program.buffers)) if n not in aliases]
    number = {n: (i, 0) for i, n in enumerate(kept)}
    for n in aliases:
        home, column = _home(n, aliases)
        number[n] = number[home][0], column

    def moved(o: Operand) -> Operand:
        buffer, column = number[o.buffer]
        return Operand(buffer, o.column + column, *o[2:])

    def moved_store(s: Store) -> Store:
        buffer, column = number[s.buffer]
        return Store(buffer, s.column + column, *s[2:])

    for n, before in enumerate(program.instructions):
        program.instructions[n] = i = clone(before)
        i.inputs = [moved(o) for o in i.inputs]
        i.out = None if i.out is None else moved(i.out)
        i.loads = [load._replace(operand=moved(load.operand)) for load in i.loads]
        i.stores = [moved_store(s) for s in i.stores]
    program.buffers = [program.buffers[n] for n in kept]
    program.loss = number[program.loss][0] if program.loss in number else program.loss
    program.outputs = {name: number[n][0] for name, n in program.outputs.items()}


def _home(n: int, aliases: dict[int, Alias]) -> Alias:
    """Return the buffer that stores ``n``, through chains of aliases."""
    column = 0
    while n in aliases:
        n, start = aliases[n]
        column += start
    return n, column
