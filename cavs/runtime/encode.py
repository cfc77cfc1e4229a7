"""Encode a program of the compiler for the engine."""

from __future__ import annotations

from typing import Any

from cavs import _engine
from cavs.compiler.program import Program
from cavs.data.features import owner_of, split_name


def encode(program: Program) -> _engine.Program:
    """Return an ``_engine.Program`` equal to ``program``; the engine validates it."""
    p = _engine.Program()
    p.kinds = program.kinds
    names, links = program.structures
    if names != ("",):
        of_ints = [owner_of(split_name(n)[0])[0] for n in program.int_features]
        ends = [(names.index(link.target), names.index(link.source)) for link in links]
        p.set_structures(len(names), [names.index(s) for s in of_ints], ends)
    for b in program.buffers:
        unused = b.last < b.first
        stages = (0, 0) if unused else (b.first, b.last)
        p.add_buffer(b.role, b.index, b.space, b.width, *stages, b.held)
    for w in program.weights:
        p.add_weight(w.k, w.n, w.pieces)
    for i in program.instructions:
        fields = {k: v for k, v in vars(i).items() if k != "scatters"}
        if i.out is None:
            del fields["out"]
        p.add_instruction(_printable(fields))
    for s in program.stages:
        p.add_stage(_printable({k: v for k, v in vars(s).items() if k != "gradient"}))
    p.finish(program.loss, sorted(set(program.outputs.values())), program.forward_stages)
    return p


def _printable(fields: dict[str, Any]) -> dict[str, Any]:
    """Replace text that is not UTF-8, such as the name of the user's file."""
    return {
        k: v
        if not isinstance(v, str) or v.isascii()
        else v.encode("utf-8", "backslashreplace").decode()
        for k, v in fields.items()
    }
