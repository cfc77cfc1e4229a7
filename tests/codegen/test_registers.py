"""NVRTC compiles the fused kernels of every operator, cell and model; none spills registers."""

from __future__ import annotations

import functools
import re
from collections import Counter

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.cli import registry
from cavs.codegen.cuda import Load, Store, kernel_text, shape_of
from cavs.codegen.cuda_prelude import HALF_PRELUDE, PRELUDE
from cavs.codegen.map import MapOp
from cavs.compiler.fuse import MAX_OPERANDS
from cavs.cuda import libraries
from cavs.cuda.device import compile_options
from cavs.cuda.nvrtc import Nvrtc, resources
from cavs.cuda.persistent import DeviceSpec, persistent_loops, persistent_text
from cavs.cuda.program import map_kernels
from cavs.cuda.storage import half_buffers
from cavs.ops.primitives import PRIMITIVES
from tests.cuda.device import NO_NVRTC
from tests.cuda.executor.test_operators import NAMES, Together
from tests.cuda.kernel_signatures import headers
from tests.cuda.nvrtc_log import ALL, log_of
from tests.models.test_cells import ARITY
from tests.models.test_models import OPTIONS, build
from tests.ops.test_registry import graphs
from tests.runtime.trees import Classifier, graph

CELLS = [name for name in nn.__all__ if isinstance(getattr(nn, name), type)]
CELLS = [name for name in CELLS if issubclass(getattr(nn, name), cavs.VertexFunction)]
OF_ONE_SIZE = ("RNTN", "TreeFC")
SIZES = {"RNTN": (9, 24)}  # others: rows of whole words of a thread, and rows of odd length
# Others: hidden_size 150. The number of kernels of the MV-RNN grows with it: here its default.
MODELS = {"ast-naming": ("size", 128), "mv-rnn": ("hidden_size", 25)}
MODELS["tree-fc"] = ("hidden_size", 64)


def classifier(name, size):
    cell = getattr(nn, name)
    cell = cell(size) if name in OF_ONE_SIZE else cell(8, size)
    return Classifier(cell, input_size=size if name in OF_ONE_SIZE else 8, rate=0.3)


@functools.cache
def of_cells():
    """Programs for training."""
    rng = np.random.default_rng(0)
    found = []
    for name in CELLS:
        children = [[], [0], [1]] if ARITY.get(name) == 1 else [[], [], [0, 1], [], [2, 3]]
        batch = cavs.batch([graph(children, rng), graph([[]], rng)])
        for size in SIZES.get(name, (33, 64)):
            found.append(cavs.Session(classifier(name, size)).compiled(batch).program)
    return found


@functools.cache
def of_models(folder):
    """The same of the models of models/."""
    found = []
    for name in OPTIONS:
        own, size = MODELS.get(name, ("hidden_size", 150))
        (folder / name).mkdir()
        task = build(registry.find(name), folder / name, **{own: size, "dropout": 0.3})
        task.model.initialize(1)
        batch = cavs.batch(task.required("train")[:20])
        found.append(cavs.Session(task.model).compiled(batch).program)
    return found


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def compiler():
    library = libraries.find("nvrtc")
    if library is None:
        pytest.skip(NO_NVRTC)
    return Nvrtc(library.path)


@functools.cache
def of_operators(real):
    """Programs of all operators: for training, and for inference in float32."""
    batch, found = cavs.batch(graphs(0)), []
    for names in NAMES:
        session = cavs.Session(Together(names), dtype="float64" if real == "double" else "float32")
        found.append(session.compiled(batch).program)
        if real == "float":
            found.append(session.compiled(batch, training=False, with_loss=False).program)
    return found


def kernels(texts):
    """One module of all of them; what differs in name alone is there once."""
    made = {}
    for text in texts:
        for kernel in re.split(r'(?=extern "C" __global__)', text)[1:]:
            body = re.sub(r"\bmap_\d+\(", "NAME(", kernel)
            made.setdefault(body, f"map_{len(made)}(")
    return [body.replace("NAME(", name, 1) for body, name in made.items()]


def assert_no_spills(compiler, texts, half, arch):
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v"]
    text = "".join([PRELUDE, HALF_PRELUDE if half else "", *texts])
    log = log_of(compiler, "maps.cu", text, headers(), options)
    found = [of for of in resources(log) if of.registers]
    assert len(found) == len(texts)
    for of in found:
        assert of.spill_stores == of.spill_loads == of.stack == 0, of


ARCHITECTURES = ["sm_80", "sm_90"]


STATEMENT = re.compile(r"const \w+ t\d+ = .*;|s\d+\[v\] = .*;|s\d+ = .*;|const \w+ x = __shfl.*")
NUMBERS = re.compile(r"\b[lst]\d+(?:\[\w\])?|\b\d[\w.]*")
VALUES = re.compile(r"fetch<|accumulate<|put<")


def arithmetic(text):
    """The kind of a kernel, and its statements without numbers, with how often each is there."""
    kind = "v < 1;" in text, "_offsets[r]" in text, "bfloat16" in text
    return kind, Counter(NUMBERS.sub("_", line) for line in STATEMENT.findall(text))


def values(text):
    """The number of elements that a thread loads, adds up and stores, then the length."""
    return len(VALUES.findall(text)) * max(map(int, re.findall(r"v < (\d+);", text))), len(text)


def largest(texts):
    """The kernels whose statements are not all in another one of their kind with more values.

    The others differ from one of these in widths, strides and order, load fewer operands, or
    compute less: of 497 kernels in float32 none takes over 8 registers more than its larger one,
    and the largest number of registers is among those returned.
    """
    found = []
    for text in sorted(texts, key=values, reverse=True):
        kind, statements = arithmetic(text)
        if not any(kind == other and statements <= more for other, more, _ in found):
            found.append((kind, statements, text))
    return [text for _, _, text in found]


def share(texts, arch):
    """The kernels to compile for an architecture: half of the largest, or all if asked for."""
    return texts if ALL else largest(texts)[ARCHITECTURES.index(arch) :: 2]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("half", [False, True], ids=["float", "half"])
def test_no_kernel_of_a_cell_or_model_spills(compiler, folder, arch, half):
    programs = of_cells() + of_models(folder)
    texts = kernels(map_kernels(p, "float", half_buffers(p) if half else ()).text for p in programs)
    assert len(texts) > 100
    assert half == any("bfloat16* y0" in text for text in texts)
    if half:  # others are those of the first test
        texts = [text for text in texts if "bfloat16" in text]
    assert_no_spills(compiler, share(texts, arch), half, arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("real", ["float", "double"])
def test_no_kernel_of_an_operator_spills(compiler, arch, real):
    texts = kernels(map_kernels(program, real).text for program in of_operators(real))
    assert len(texts) > 150
    assert_no_spills(compiler, share(texts, arch), False, arch)


def wide(name, rng, half, real):
    """A kernel of as many operands as there may be, joined in any order, two at a time."""
    maps = ["self", "self", "one", "index", "segment_sum"]
    loads = [
        Load(64, 8 * int(rng.integers(4)), str(rng.choice(maps)), half=half and n % 2 == 0)
        for n in range(MAX_OPERANDS)
    ]
    live, ops = list(range(len(loads))), []
    while len(live) > 2:
        a, b = (live.pop(int(rng.integers(len(live)))) for _ in range(2))
        live.append(len(loads) + len(ops))
        ops.append(MapOp(str(rng.choice(["add", "mul", "sub"])), live[-1], a, b, 0, 0.0))
    stores = [Store(x, 64, half=half) for x in live] + [Store(live[0], 1, mode="sum")] * (not half)
    assert shape_of(loads, stores, 1, 64, real).vector == (2 if real == "double" else 4)
    return kernel_text(name, loads, ops, stores, 1, 64, real)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("real", ["float", "half", "double"])
def test_no_wide_kernel_spills_and_every_operation_compiles(compiler, arch, real):
    real, half = ("float", True) if real == "half" else (real, False)
    rng = np.random.default_rng(0)
    texts = [wide(f"wide_{n}", rng, half, real) for n in range(3)]
    loads, store = [Load(8, half=half)] * 3, Store(3, 8, half=half)
    for code in [*PRIMITIVES, "constant", "uniform"]:
        ops = [MapOp(code, 3, 0, 1, 2, 0.5)]
        texts.append(kernel_text(f"k_{code}", loads, ops, [store], 1, 8, real))
    assert_no_spills(compiler, texts, half, arch)


SPECS = {"sm_80": DeviceSpec(108, 166_912, 128), "sm_90": DeviceSpec(132, 232_448, 128)}
WALKS = [(arch, p) for p in ("tf32", "float32", "bfloat16") for arch in SPECS]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(0, len(CELLS) + len(OPTIONS), 1 if ALL else 3))
def test_no_kernel_that_walks_a_loop_spills(compiler, folder, number):
    """Some programs, each for one architecture and precision; all, if examples are asked for."""
    of_size = [p for name, p in zip(cell_names(), of_cells(), strict=True) if name]
    program = [*of_size, *of_models(folder)][number]
    for arch, precision in WALKS if ALL else [WALKS[number // 3 % len(WALKS)]]:
        half = half_buffers(program) if precision == "bfloat16" else ()
        loops = persistent_loops(program, SPECS[arch], "float", precision, half)
        assert len(loops) == sum(stage.type == "loop" for stage in program.stages)
        text = persistent_text(loops, "float", precision == "bfloat16")
        options = compile_options(arch, "float", precision == "bfloat16")
        log = log_of(compiler, "walk.cu", text, headers(), [*options, "--ptxas-options=-v"])
        found = [of for of in resources(log) if of.registers]
        assert {of.name for of in found} == {loop.name for loop in loops}
        for of in found:
            assert of.spill_stores == of.spill_loads == of.stack == 0, (of, arch, precision)
            assert of.registers <= 255


def cell_names():
    """Return the name of the cell of each program of `of_cells`, once; else none."""
    names = [name for name in CELLS for _ in SIZES.get(name, (33, 64))]
    return [None if name in names[:n] else name for n, name in enumerate(names)]
