"""Models whose programs together have every kind of stage, instruction and operand.

Tests of the engine that run a program in several ways take these models in place of all, unless
CAVS_TEST_EXAMPLES is set; tests of the models themselves run every one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cavs.cli import Task, registry
from cavs.compiler.program import Instruction, Program, kind_of, relation_of
from tests.draws import EXAMPLES
from tests.models.test_models import OPTIONS, build

COVERING = ("mv-rnn", "nested-rnn", "dependency-tagger", "char-tagger", "astnn", "plan-cost")
COVERING += ("lattice-lstm", "translator", "tree-fc", "circuit-rnn")
MODELS = list(OPTIONS) if EXAMPLES else [name for name in OPTIONS if name in COVERING]


def task_of(name: str, folder: Path) -> Task:
    """Return the task of a small model, with dropout if it has any."""
    entry = registry.find(name)
    rate = {"dropout": 0.3} if "dropout" in entry.options() else {}
    return build(entry, folder, **rate)


def kinds(program: Program) -> set[tuple[object, ...]]:
    """Return the kinds of stages, and by type of stage those of instructions and operands."""
    found: set[tuple[object, ...]] = {("types", len(program.types) > 0)}
    found.add(("links", len(program.structures.links)))
    for stage in program.stages:
        found.add((stage.type, stage.reversed, stage.gradient, len(stage.bodies) > 1))
        for n in {n for body in (stage.body, *stage.bodies) for n in body}:
            of = program.instructions[n]
            found |= {(stage.type, of.type, *kind) for kind in operands(program, of)}
            found |= {("operation", op.code) for op in of.ops}
    return found


def operands(program: Program, of: Instruction) -> Iterator[tuple[object, ...]]:
    """Yield the kinds of an instruction's operands and results, with what relates their rows."""

    def rows(buffer: int) -> tuple[object, ...]:
        space = program.buffers[buffer].space
        relation = relation_of(space)
        return relation and min(relation, 1), kind_of(space) is not None

    for x in of.inputs:
        yield x.map, x.array
    if of.out is not None:
        yield "out", of.out.map, of.out.array, of.accumulate, *rows(of.out.buffer)
    for load in of.loads:
        x = load.operand
        yield "load", x.map, x.array, load.scalar, load.outer_stride > 0, *rows(x.buffer)
    for store in of.stores:
        yield "store", store.mode, store.outer_stride > 0, *rows(store.buffer)
