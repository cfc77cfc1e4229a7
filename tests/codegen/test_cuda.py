"""The CUDA text of fused kernels, compiled as C++: its values are those of the NumPy reference."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.codegen.cuda import OPERATIONS, PRELUDE, Load, Store, kernel_text, literal
from cavs.codegen.map import MapProgram, Register
from cavs.compiler.text import cuda_text
from cavs.ir import REGISTRY, VERTEX, apply
from tests.kernels.map_reference import CODE, Program
from tests.kernels.map_reference import Load as Read
from tests.runtime.trees import Classifier, graph

HOST = Path(__file__).with_name("warp.h")
HEAD = re.compile(r"__global__ void __launch_bounds__\(256\) (\w+)\((.*)\) {$", re.MULTILINE)
ROWS = 7


def launchers(text):
    """For every kernel a function ``run_<kernel>`` that takes the number of blocks first."""
    for name, parameters in HEAD.findall(text):
        names = ", ".join(p.split()[-1].lstrip("*") for p in parameters.split(", "))
        yield f'extern "C" void run_{name}(long long blocks, {parameters}) {{\n'
        yield f"  warp::launch(blocks, 64, [=] {{ {name}({names}); }});\n}}\n"


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")

    def library(text):
        folder = tmp_path_factory.mktemp("cuda")
        whole = [f'#include "{HOST}"\n', PRELUDE, text, "#define __restrict__\n", *launchers(text)]
        (folder / "kernels.cc").write_text("".join(whole))
        command = [compiler, "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror"]
        command += ["-Wno-unknown-pragmas", "-Wno-unused-variable", "-Wno-unused-function"]
        subprocess.run(
            [*command, "-shared", "-fPIC", "-o", "k.so", "kernels.cc"], cwd=folder, check=True
        )
        return ctypes.CDLL(str(folder / "k.so"))

    return library


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


def call(library, name, arguments, blocks=2):
    wide = [ctypes.c_longlong(x) if isinstance(x, int) else pointer(x) for x in arguments]
    function = getattr(library, f"run_{name}")
    function.restype = None
    function(ctypes.c_longlong(blocks), *wide)


ELEMENTWISE = sorted(
    n for n, op in REGISTRY.items() if op.elementwise and n not in ("constant", "uniform")
)


def test_every_elementwise_operator(build):
    rng = np.random.default_rng(0)
    text, cases = "", {}
    for name in ELEMENTWISE:
        if name == "broadcast":
            continue
        count = {"where": 3}.get(name, REGISTRY[name].expr.__code__.co_argcount - 1)
        inputs = [
            apply("feature", name=x, dtype="f32", shape=(5,), domain=VERTEX, optional=False)
            for x in "abc"[:count]
        ]
        node = apply(name, *inputs)
        program = MapProgram(count)
        result = program.apply(node, [Register(program, i) for i in range(count)])
        operations, place, _ = program.finish({result.number})
        stores = [Store(place[result.number], 5)]
        text += kernel_text(f"op_{name}", [Load(5)] * count, operations, stores, 1, 5)
        values = [rng.uniform(0.1, 2.0, (ROWS, 5)).astype("f4") for _ in range(count)]
        for v in values:
            v[::2, 1:3] = 0.5
        cases[name] = (values, node)
    assert len(cases) >= 18
    library = build(text)
    for name, (values, node) in cases.items():
        out = np.full((ROWS, 5), np.nan, "f4")
        call(library, f"op_{name}", [0, ROWS, *values, out])
        expected = node.op.evaluate(node, *(v.astype("f8") for v in values))
        np.testing.assert_allclose(out, expected, rtol=2e-6, atol=1e-6, err_msg=name)


def test_nan_goes_through_extrema_and_numbers_are_exact(build):
    loads, stores = [Load(1), Load(1)], [Store(2, 1)]
    text = "".join(
        kernel_text(f"k_{c}", loads, [(c, 2, 0, 1, 0, 0.0)], stores, 1, 1) for c in ("max", "min")
    )
    constants = [0.1, -2.0, 1e30, 1e-40, float("inf"), -float("inf"), float("nan")]
    text += kernel_text(
        "constants",
        [],
        [("constant", i, 0, 0, 0, v) for i, v in enumerate(constants)],
        [Store(i, 1) for i in range(len(constants))],
        1,
        1,
    )
    library = build(text)
    a, b = np.array([np.nan, 1, 3], "f4"), np.array([1, np.nan, 2], "f4")
    for code, last in (("max", 3), ("min", 2)):
        out = np.zeros(3, "f4")
        call(library, f"k_{code}", [0, 3, a, b, out])
        np.testing.assert_array_equal(out, [np.nan, np.nan, last])
    outs = [np.zeros(1, "f4") for _ in constants]
    call(library, "constants", [0, 1, *outs])
    np.testing.assert_array_equal(np.concatenate(outs), np.array(constants, "f4"))
    assert literal(1) == "1.0f"


def instructions():
    """The fused kernels of cells with every row map, reduction and random numbers."""
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


def read(program, o, rng, arguments):
    """Random memory for one operand, added to the arguments of the call; rows as it reads them."""
    buffer, column, width, row_map, array, _ = o
    b = program.buffers[buffer]
    stride = 0 if b.role == "ones" else b.width
    rows = "one" if b.role == "count" else row_map
    columns = max(b.width, column + width)
    memory = rng.uniform(0.2, 1.5, (ROWS + 3, columns)).astype("f4")
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


def test_the_fused_kernels_of_cells(build):
    rng = np.random.default_rng(0)
    seen = set()
    for program in instructions():
        maps = [n for n, i in enumerate(program.instructions) if i.kind == "map"]
        library = build("".join(cuda_text(program, n) for n in maps))
        for n in maps:
            i = program.instructions[n]
            arguments, loads = [1, ROWS], []
            for operand, outer_stride, scalar in i.loads:
                values = read(program, operand, rng, arguments)
                loads.append(Read(None, values[1:], outer_stride, scalar))
                seen.add(operand[3])
            outs = []
            for buffer, *_ in i.stores:
                outs.append(np.full((ROWS, program.buffers[buffer].width), np.nan, "f4"))
            arguments += outs
            ids = rng.permutation(100)[:ROWS].astype("i4")
            if any(op[0] == "uniform" for op in i.ops):
                arguments += [5, 2**33 + 1, ids]
                seen.add("uniform")
            call(library, f"map_{n}", arguments)
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
                    np.testing.assert_allclose(part, made[:, o], rtol=2e-5, atol=1e-5)
                    out[1:, start : start + made.shape[2]] = np.nan
                assert np.isnan(out).all()  # nothing else is written
    assert seen >= {"self", "one", "index", "segment_sum", "write", "sum", "max", "uniform"}


def test_every_operation_has_a_text():
    assert {c.lower() for c in CODE.__members__} == {*OPERATIONS, "constant", "uniform"}
