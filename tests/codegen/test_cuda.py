"""The CUDA text of fused kernels, run on the host twin: its values are those of the reference."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.codegen.cuda import (
    Load,
    Store,
    kernel_text,
    literal,
    shape_of,
)
from cavs.codegen.map import MapOp, MapProgram, Register
from cavs.cuda.program import map_kernels, program_text
from cavs.ir import REGISTRY, VERTEX, apply
from cavs.ops.primitives import PRIMITIVES
from tests.codegen.device import runner  # noqa: F401
from tests.kernels.map_reference import CODE, Program
from tests.kernels.map_reference import Load as Read
from tests.runtime.trees import Classifier, graph

ROWS = 7
REAL = {"float": "f4", "double": "f8"}
both = pytest.mark.parametrize("real", REAL)

ELEMENTWISE = sorted(
    n for n, op in REGISTRY.items() if op.elementwise and n not in ("constant", "uniform")
)

ATTRIBUTES = {"power": {"exponent": 1.7}, "column_number": {"size": 6}}


@both
def test_every_elementwise_operator(runner, real):  # noqa: F811
    rng = np.random.default_rng(0)
    text, cases = "", {}
    for name in ELEMENTWISE:
        if name == "broadcast":
            continue
        count = {"where": 3}.get(name, REGISTRY[name].expr.__code__.co_argcount - 1)
        inputs = [
            apply("feature", name=x, dtype="f32", shape=(6,), domain=VERTEX, optional=False)
            for x in "abc"[:count]
        ]
        node = apply(name, *inputs, **ATTRIBUTES.get(name, {}))
        program = MapProgram(count)
        result = program.apply(node, [Register(program, i) for i in range(count)])
        operations, place, _ = program.finish({result.number})
        stores = [Store(place[result.number], 6)]
        text += kernel_text(f"op_{name}", [Load(6)] * count, operations, stores, 1, 6, real)
        values = [rng.uniform(0.1, 2.0, (ROWS, 6)).astype(REAL[real]) for _ in range(count)]
        for v in values:
            v[::2, 1:3] = 0.5
        cases[name] = (values, node)
    assert len(cases) >= 18
    module = runner.module(text)
    for name, (values, node) in cases.items():
        out = np.full((ROWS, 6), np.nan, REAL[real])
        (out,) = runner.run(module, f"op_{name}", 3, 0, ROWS, values, [out])
        expected = node.op.evaluate(node, *(v.astype("f8") for v in values))
        expected = np.broadcast_to(expected, out.shape)
        eps = np.finfo(out.dtype).eps
        np.testing.assert_allclose(out, expected, rtol=16 * eps, atol=8 * eps, err_msg=name)


@both
def test_functions_saturate_and_keep_nan(runner, real):  # noqa: F811
    x = np.array([[-np.inf, -1e4, -100.0, 0.0, 100.0, 1e4, np.inf, np.nan]], REAL[real])
    codes = ("sigmoid", "tanh", "exp")
    text = "".join(
        kernel_text(f"k_{c}", [Load(8)], [MapOp(c, 1, 0, 0, 0, 0.0)], [Store(1, 8)], 1, 8, real)
        for c in codes
    )
    module = runner.module(text)
    with np.errstate(over="ignore"):
        expected = [1 / (1 + np.exp(-x.astype("f8"))), np.tanh(x), np.exp(x)]
    for code, values in zip(codes, expected, strict=True):
        (out,) = runner.run(module, f"k_{code}", 2, 0, 1, [x], [np.empty_like(x)])
        np.testing.assert_allclose(out, values, rtol=1e-6, atol=1e-38, err_msg=code)


@both
def test_nan_goes_through_extrema_and_numbers_are_exact(runner, real):  # noqa: F811
    loads, stores = [Load(1), Load(1)], [Store(2, 1)]
    text = "".join(
        kernel_text(f"k_{c}", loads, [MapOp(c, 2, 0, 1, 0, 0.0)], stores, 1, 1, real)
        for c in ("max", "min")
    )
    constants = [0.1, -2.0, 1e30, 1e-40, float("inf"), -float("inf"), float("nan")]
    text += kernel_text(
        "constants",
        [],
        [MapOp("constant", i, 0, 0, 0, v) for i, v in enumerate(constants)],
        [Store(i, 1) for i in range(len(constants))],
        1,
        1,
        real,
    )
    module = runner.module(text)
    dtype = REAL[real]
    a, b = np.array([np.nan, 1, 3], dtype), np.array([1, np.nan, 2], dtype)
    for code, last in (("max", 3), ("min", 2)):
        (out,) = runner.run(module, f"k_{code}", 1, 0, 3, [a, b], [np.zeros(3, dtype)])
        np.testing.assert_array_equal(out, [np.nan, np.nan, last])
    outs = [np.zeros(1, dtype) for _ in constants]
    outs = runner.run(module, "constants", 1, 0, 1, [], outs)
    np.testing.assert_array_equal(np.concatenate(outs), np.array(constants, dtype))
    assert literal(1) == "1.0f"
    assert literal(0.1, "double") == "0.1"


def programs():
    """The programs of cells with every row map, reduction and random numbers."""
    rng = np.random.default_rng(0)
    trees = [graph([[], [], [0, 1], [], [2, 3]], rng), graph([[]], rng)]
    for cell in (nn.BinaryTreeLSTM, nn.TreeGRU, nn.TreeAttention, nn.ChildSumTreeLSTM):
        model = Classifier(cell(8, 6), rate=0.3)
        yield cavs.Session(model).compiled(cavs.batch(trees)).program

    class Whole(Classifier):
        def loss(self, batch):
            h = self.tree(batch.graph, x=self.embedding(batch["token"]))
            return ops.mean_squared_error(ops.sum_graph(ops.softmax(h)), 0.25)

    yield cavs.Session(Whole(nn.RNTN(8))).compiled(cavs.batch(trees)).program


def read(program, o, rng, arguments, dtype):
    """Random memory for one operand, added to the arguments of the call; rows as it reads them."""
    buffer, column, width, row_map, array, _ = o
    b = program.buffers[buffer]
    stride = 0 if b.role == "ones" else b.width
    rows = "one" if b.role == "count" else row_map
    columns = max(b.width, column + width)
    memory = rng.uniform(0.2, 1.5, (ROWS + 3, columns)).astype(dtype)
    if stride == 0:
        memory[:] = memory[:1, :1]
    arguments.append(memory if rows == "one" or stride else memory[:1])
    values = memory.astype("f8")[:, column : column + width]
    if rows == "one":
        return np.repeat(values[:1], ROWS, 0)
    if rows == "self":
        return values[:ROWS]
    if rows == "index":
        index = rng.integers(-1, ROWS + 3, ROWS).astype("i4")
        arguments.append(index)
        return np.where(index[:, None] < 0, 0.0, values[index])
    offsets = np.sort(rng.integers(0, ROWS + 3, ROWS + 1)).astype("i4")
    arguments.append(offsets)
    index = np.arange(ROWS + 3, dtype="i4")
    if array != "edges":
        index = rng.permutation(index).astype("i4")
        arguments.append(index)
    return np.stack([values[index[a:b]].sum(0) for a, b in pairwise(offsets)])


@both
def test_the_fused_kernels_of_cells(runner, real):  # noqa: F811
    rng = np.random.default_rng(0)
    seen = set()
    eps = np.finfo(REAL[real]).eps
    for program in programs():
        generated = map_kernels(program, real)
        module = runner.module(generated.text)
        for i, (name, threads) in zip(program.instructions, generated.kernels, strict=True):
            if i.type != "map":
                assert name == ""
                continue
            arguments, loads, last = [], [], ()
            for operand, outer_stride, scalar in i.loads:
                values = read(program, operand, rng, arguments, REAL[real])
                loads.append(Read(None, values[1:], outer_stride, scalar))
                seen.add(operand[3])
            widths = [program.buffers[store[0]].width for store in i.stores]
            outs = [np.full((ROWS, width), np.nan, REAL[real]) for width in widths]
            ids = rng.permutation(100)[:ROWS].astype("i4")
            if any(op[0] == "uniform" for op in i.ops):
                last = runner.drawing(5, 2**33 + 1, ids)
                seen.add("uniform")
            outs = runner.run(module, name, threads, 1, ROWS, arguments, outs, last)
            codes = [(getattr(CODE, op[0].upper()), *op[1:]) for op in i.ops]
            made_by = Program(
                loads, codes, i.outer, i.inner, 1, ROWS, i.registers, 5, 2**33 + 1, ids
            )
            with np.errstate(all="ignore"):  # a row of zeros may be divided by
                reference = made_by.reference()
            for out, (_, column, outer_stride, mode, register) in zip(outs, i.stores, strict=True):
                seen.add(mode)
                made = reference[register]
                if mode != "write":
                    made = (made.sum(-1) if mode == "sum" else made.max(-1))[:, :, None]
                for o in range(i.outer):
                    start = column + o * outer_stride
                    part = out[1:, start : start + made.shape[2]]
                    np.testing.assert_allclose(part, made[:, o], rtol=160 * eps, atol=80 * eps)
                    out[1:, start : start + made.shape[2]] = np.nan
                assert np.isnan(out).all()  # nothing else is written
    assert seen >= {"self", "one", "index", "segment_sum", "write", "sum", "max", "uniform"}


def test_uniform_numbers_are_those_of_the_engine(runner):  # noqa: F811
    drawn = [MapOp("uniform", 0, 0, 0, 0, 7.0)]
    module = runner.module(kernel_text("draw", [], drawn, [Store(0, 12, 0, 4)], 3, 4))
    ids = np.array([4, 2**31 - 1, 0], "i4")
    for given in (None, ids):
        last = runner.drawing(2**40 + 3, 2**35 + 9, given)
        out = np.empty((3, 12), "f4")
        (out,) = runner.run(module, "draw", 3, 0, 3, [], [out], last)
        made_by = Program(
            [], [(CODE.UNIFORM, *drawn[0][1:])], 3, 4, 0, 3, 1, 2**40 + 3, 2**35 + 9, given
        )
        np.testing.assert_array_equal(out, made_by.reference()[0].reshape(3, 12))


@both
def test_sinusoids_of_any_angle(runner, real):  # noqa: F811
    """Angles up to the largest number, with the remainder of each to the last bits."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 120)) * np.exp(rng.uniform(-5, 85, (ROWS, 120)))
    x[0] = np.arange(-60, 60) * (np.pi / 2)
    x = x.astype(REAL[real])
    if real == "double":
        x[1] *= 1e200
        x[2, :3] = 2.0**20, -np.finfo("f8").max, 5e-324
    for name in ("sin", "cos"):
        ops = [MapOp(name, 1, 0, 0, 0, 0.0)]
        module = runner.module(
            kernel_text("of_" + name, [Load(120)], ops, [Store(1, 120)], 1, 120, real)
        )
        (out,) = runner.run(module, "of_" + name, 3, 0, ROWS, [x], [np.zeros_like(x)])
        expected = getattr(np, name)(x.astype("longdouble"))
        assert np.abs(out - expected).max() <= 2 * np.finfo(x.dtype).eps


def test_work_is_divided():
    """Vectors where they fit the row; groups of lanes no larger than a block of the reduction."""
    written, summed = [Store(0, 8)], [Store(0, 1, mode="sum")]
    assert shape_of([], written, 1, 256).threads == 64
    assert shape_of([], written, 2, 6).threads == 6
    assert shape_of([], written, 1, 5, "double").threads == 5
    assert shape_of([], written, 1, 256, "double").threads == 128
    lanes = [shape_of([], summed, 1, n).lanes for n in (1, 2, 8, 20, 24, 1000)]
    assert lanes == [1, 1, 2, 8, 8, 32]
    assert shape_of([], summed, 3, 1000).threads == 96
    assert shape_of([Load(8, half=True)], written, 1, 256).threads == 32
    assert shape_of([Load(8)], [Store(0, 8, half=True)], 1, 12).threads == 3


def test_words_are_as_wide_as_every_operand_allows():
    loads = [Load(8), Load(8, 2), Load(6), Load(8, aligned=False), Load(1, 3, "one"), Load(8, 4)]
    text = kernel_text("k", loads, [], [Store(0, 9), Store(1, 10, 4), Store(2, 8, 4)], 1, 8)
    words = [int(x) for x in re.findall(r"(?:fetch|put)<(\d)>", text)]
    assert words == [4, 2, 2, 1, 1, 4, 1, 2, 4]
    loads = [Load(16), Load(16, half=True), Load(12, half=True), Load(16, 2, half=True)]
    text = kernel_text("k", loads, [], [Store(0, 16), Store(1, 24, 8, half=True)], 1, 16)
    words = [int(x) for x in re.findall(r"(?:fetch|put)<(\d)>", text)]
    assert words == [4, 8, 4, 2, 4, 8]


def test_equal_kernels_are_one():
    (program, *_) = programs()
    generated = map_kernels(program)
    made = re.findall(r"__launch_bounds__\(256, 2\) (\w+)\(", generated.text)
    used = [name for name, _ in generated.kernels if name]
    assert sorted(set(used)) == sorted(made)
    assert program_text(program) == generated.text
    doubled = [*program.instructions, *program.instructions]
    program.instructions = doubled
    again = map_kernels(program)
    assert again.text == generated.text
    assert again.kernels == generated.kernels * 2


def test_every_operation_has_a_text():
    assert {c.lower() for c in CODE.__members__} == {*PRIMITIVES, "constant", "column", "uniform"}
