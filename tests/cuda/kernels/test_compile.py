"""Every kernel source compiles for sm_80 or sm_90 without spills, with the expected parameters."""

from __future__ import annotations

import ctypes
import itertools

import pytest

from cavs import optim
from cavs.codegen.cuda import Load, Store, kernel_text
from cavs.codegen.cuda_prelude import PRELUDE
from cavs.codegen.map import MapOp
from cavs.codegen.update import KERNEL, update_text
from cavs.cuda import libraries
from cavs.cuda.device import compile_options
from cavs.cuda.nvrtc import Nvrtc, resources
from cavs.errors import DeviceError
from tests.cuda.device import NO_NVRTC
from tests.cuda.kernel_cases import Case
from tests.cuda.kernel_signatures import (
    KERNELS,
    OPTIONS,
    SIGNATURES,
    definitions,
    dtypes_of,
    headers,
    names_of,
    source,
)
from tests.cuda.nvrtc_log import ALL, log_of
from tests.train.own_rules import AMSGrad

LIBRARY = libraries.find("nvrtc")
needs_nvrtc = pytest.mark.skipif(LIBRARY is None, reason=NO_NVRTC)
ARCHITECTURES = ["sm_80", "sm_90"]
SOURCES = [(file, dtype) for file in SIGNATURES for dtype in dtypes_of(file)]
# Both architectures if all examples are requested, otherwise one after the other.
every_source = pytest.mark.parametrize(
    ("file", "dtype", "architecture"),
    [
        (*of, architecture)
        for n, of in enumerate(SOURCES)
        for architecture in (ARCHITECTURES if ALL else [ARCHITECTURES[n % 2]])
    ],
)
REGISTERS = 65536  # registers of a multiprocessor, allocated per warp in steps of 8 per thread


def blocks(file: str, name: str, dtype: str) -> int:
    """Least number of blocks of 256 threads per multiprocessor, by their registers."""
    if "matmul" in name:  # kernels for few rows use few multiprocessors anyway
        return 2 if dtype == "half" or (dtype == "float32" and not name.endswith("_16")) else 1
    if file == "update.cu":
        return 3 if dtype != "float64" else 2
    return 4


@needs_nvrtc
@every_source
def test_kernels_compile_without_spills(file: str, dtype: str, architecture: str) -> None:
    assert LIBRARY is not None
    options = [*definitions(dtype), f"--gpu-architecture={architecture}", *OPTIONS]
    compiler = Nvrtc(LIBRARY.path)
    log = log_of(compiler, file, source(file), headers(), [*options, "--ptxas-options=-v"])
    assert "warning" not in log, log
    found = resources(log)
    assert {of.name for of in found if of.registers} == names_of(file, dtype)
    for of in found:
        assert of.spill_stores == of.spill_loads == of.stack == 0, of
        of_block = -(-of.registers // 8) * 8 * 256
        assert of_block <= REGISTERS // blocks(file, of.name, dtype), of


@needs_nvrtc
@pytest.mark.parametrize("real", ["float", "double"])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_kernels_of_rules_compile_without_spills(real: str, architecture: str) -> None:
    assert LIBRARY is not None
    for optimizer in (optim.Lion(0.1, weight_decay=0.1), AMSGrad(0.1, weight_decay=0.1)):
        options = [f"-DREAL={real}", f"--gpu-architecture={architecture}", *OPTIONS]
        text, compiler = update_text(optimizer.program, real), Nvrtc(LIBRARY.path)
        log = log_of(compiler, "rule.cu", text, headers(), [*options, "--ptxas-options=-v"])
        assert "warning" not in log, log
        (found,) = (of for of in resources(log) if of.registers)
        assert found.name == KERNEL
        assert found.spill_stores == found.spill_loads == found.stack == 0, found


@needs_nvrtc
def test_spills_and_errors_are_detected() -> None:
    assert LIBRARY is not None
    lines = [f"  float x{i} = p[{i}];" for i in range(64)]
    body = "\n".join([*lines, "  __syncthreads();", *(f"  p[{i}] = x{i};" for i in range(64))])
    text = f'extern "C" __global__ void k(volatile float* p) {{\n{body}\n}}\n'
    options = ["--gpu-architecture=sm_90", "--maxrregcount=32", "--ptxas-options=-v"]
    compiler = Nvrtc(LIBRARY.path)
    (of,) = resources(compiler.compile_with_log("k.cu", text, {}, options)[1])
    assert of.spill_stores > 0
    with pytest.raises(DeviceError, match=r'k\.cu\(1\): error: identifier "nothing"'):
        compiler.compile("k.cu", "int a = nothing;", {}, options[:1])


@needs_nvrtc
@pytest.mark.parametrize("real", ["float", "double"])
def test_numbers_that_are_not_finite_compile(real: str) -> None:
    """As constants, and as the start of a maximum over columns."""
    assert LIBRARY is not None
    values = (float("inf"), -float("inf"), float("nan"))
    constants = [MapOp("constant", i, 0, 0, 0, v) for i, v in enumerate(values)]
    text = PRELUDE + kernel_text("k", [], constants, [Store(i, 1) for i in range(3)], 1, 1, real)
    text += kernel_text("highest", [Load(8)], [], [Store(0, 1, mode="max")], 1, 8, real)
    image = Nvrtc(LIBRARY.path).compile("maps.cu", text, {}, compile_options("sm_80", real))
    assert image.startswith(b"\x7fELF")


@needs_nvrtc
def test_line_numbers_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LIBRARY is not None
    text = 'extern "C" __global__ void k(float* p) {\n  p[threadIdx.x] = 1;\n}\n'
    compiler = Nvrtc(LIBRARY.path)
    plain = compiler.compile("k.cu", text, {}, compile_options("sm_90", "float"))
    monkeypatch.setenv("CAVS_LINE_INFO", "1")
    lined = compiler.compile("k.cu", text, {}, compile_options("sm_90", "float"))
    assert [b".debug_line" in image for image in (plain, lined)] == [False, True]


def test_every_source_is_known() -> None:
    assert {path.name for path in KERNELS.glob("*.cu")} == set(SIGNATURES)


@pytest.mark.parametrize("name", sorted(itertools.chain(*SIGNATURES.values())))
def test_signatures(name: str) -> None:
    """Types and sizes of the parameters of each kernel are those of its source."""
    device = Case("twin", "float32").device
    assert device.twin is not None
    function, types = device.function(name, "half" if "bf16" in name else "float32")
    found = device.twin.calls.twin_parameters(function).decode().split()

    def kind(t: type) -> str:
        if issubclass(t, ctypes.Structure):
            return f"s{ctypes.sizeof(t)}"
        if t is ctypes.c_uint64:
            return "p8"
        return {ctypes.c_double: "f8", ctypes.c_int: "i4", ctypes.c_longlong: "i8"}[t]

    assert found == [kind(t) for t in types]
