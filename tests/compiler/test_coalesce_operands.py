"""Operands that products read side by side are stored side by side on a device."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.compiler.coalesce_operands import adjacent_buffers, coalesce_operands
from cavs.compiler.options import CPU, DEVICE
from cavs.compiler.pipeline import CompileOptions, Passes, compile_graph, default_passes
from cavs.compiler.program import Buffer, Instruction, Operand, Program, Store
from tests.runtime.trees import Classifier, graph, treebank


def compiled(cell, target):
    """A training program, for leaves and for vertices with children."""
    model = Classifier(cell)
    model.initialize(1, np.float64)
    session = cavs.Session(model, passes=DEVICE.passes, dtype=np.float64)
    chain = graph([[], [0], [1]], np.random.default_rng(0), lambda _: False)
    batch = cavs.batch([chain]) if isinstance(cell, nn.LSTM | nn.GRU) else treebank(12)
    traced = session.compiled(batch).traced
    names = list(model.parameters())
    options = CompileOptions(training=True, target=target, passes=DEVICE.passes)
    return compile_graph(traced, [1, 2], names, options).program


def sides(program):
    for i in program.instructions:
        if i.type == "matmul":
            yield i.inputs
        elif i.type == "matmul_tn":
            yield i.inputs[: i.split]
            yield i.inputs[i.split :]


@pytest.mark.parametrize("cell", [nn.BinaryTreeLSTM, nn.LSTM, nn.ChildSumTreeLSTM, nn.GRU])
def test_cotangents_of_gates_are_one_operand(cell):
    """Where there are several, no two of them could have been one."""
    separate, joined = (compiled(cell(8, 8), target) for target in (CPU, DEVICE))
    assert not adjacent_buffers(joined)
    assert sum(map(len, sides(joined))) < sum(map(len, sides(separate)))


def test_little_memory_is_needed_for_it():
    """Dead values of other rows, which are not reused, are few."""

    def floats(program):
        return sum(b.width for b in program.buffers if b.role == "arena" and b.space > 1)

    separate, joined = (compiled(nn.BinaryTreeLSTM(8, 8), target) for target in (CPU, DEVICE))
    assert floats(joined) <= 1.15 * floats(separate)


def by_hand(widths=(16, 8, 24), **changed):
    """A product of buffers side by side, which maps write; and a sum over the second one."""
    program = Program([1], ["w"], [], [], ())
    for n, width in enumerate((*widths, 5)):
        program.buffers.append(Buffer("arena", 0, 2, width, f"b{n}", first=n, last=4 + n))
    for name, value in changed.items():
        setattr(program.buffers[1], name, value)
    inputs = [Operand(n, 0, width) for n, width in enumerate(widths)]
    stores = [Store(n, 0, 0, "write", 0) for n in range(len(widths))]
    program.instructions = [
        Instruction("map", 2, stores=stores, inner=2),
        Instruction("matmul", 2, inputs=inputs, out=Operand(len(widths), 0, 5)),
        Instruction("sum_rows", 2, inputs=[inputs[1]], out=Operand(len(widths), 0, 2)),
    ]
    return program


def test_columns_by_hand():
    program = by_hand()
    coalesce_operands(program)
    (wide, other), (made, product, total) = program.buffers, program.instructions
    assert (wide.width, wide.first, wide.last, other.name) == (48, 0, 6, "b3")
    assert [store[:2] for store in made.stores] == [(0, 0), (0, 16), (0, 24)]
    assert product.inputs == [(0, 0, 48, "self", "none", 0)]
    assert total.inputs == [(0, 16, 8, "self", "none", 0)]
    assert product.out == (1, 0, 5, "self", "none", 0)


@pytest.mark.parametrize("changed", [{"space": 3}, {"held": "leaves"}, {"role": "param"}])
def test_other_rows_stay_separate(changed):
    program = by_hand(**changed)
    before = copy.deepcopy(program)
    coalesce_operands(program)
    assert program.buffers == before.buffers
    assert program.instructions == before.instructions


def test_narrow_values_take_no_others_alignment():
    program = by_hand((16, 1, 24))
    coalesce_operands(program)
    assert [b.width for b in program.buffers] == [16, 1, 24, 5]


def test_what_a_run_gives_back_stays_alone():
    program = by_hand()
    program.outputs["y"] = 2
    coalesce_operands(program)
    assert [b.width for b in program.buffers] == [16, 8, 24, 5]


def test_defaults_by_device():
    assert default_passes("cpu") == Passes()
    assert default_passes("cuda") is default_passes("cuda:1") is DEVICE.passes
    assert not DEVICE.passes.merge_vertices
