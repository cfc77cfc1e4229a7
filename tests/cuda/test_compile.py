"""Every kernel source compiles for sm_80 and sm_90, spills nothing, and declares what it should."""

from __future__ import annotations

import ctypes
import itertools
import re

import pytest

from .kernels import KERNELS, OPTIONS, SIGNATURES, dtypes_of, headers, real, source
from .nvrtc import MISSING, CompileError, compile_source, find_library
from .support import Case

LIBRARY = find_library()
needs_nvrtc = pytest.mark.skipif(LIBRARY is None, reason=MISSING)
every_source = pytest.mark.parametrize(
    ("file", "dtype"), [(file, dtype) for file in SIGNATURES for dtype in dtypes_of(file)]
)
REGISTERS = 65536  # of a multiprocessor, handed out to a warp in steps of 8 a thread


def blocks(file: str, dtype: str) -> int:
    """Blocks of 256 threads that a multiprocessor must hold, by their registers."""
    if file in ("matmul.cu", "matmul_mma.cu"):
        return 2 if dtype == "float32" else 1
    if file == "update.cu":
        return 3 if dtype == "float32" else 2
    return 4


def functions(log: str) -> dict[str, dict[str, int]]:
    """Registers, bytes of stack and bytes of spills of each kernel, as ptxas tells them."""
    found: dict[str, dict[str, int]] = {}
    name = ""
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name = match[1]
            found[name] = {"registers": 0, "spills": 0}
        # Of the kernel, and of functions that it calls.
        if match := re.search(r"stack frame, (\d+) bytes spill stores, (\d+) bytes spill", line):
            found[name]["spills"] += int(match[1]) + int(match[2])
        if match := re.search(r"Used (\d+) registers", line):
            found[name]["registers"] = int(match[1])
    return found


@needs_nvrtc
@every_source
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_kernels_compile_without_spills(file: str, dtype: str, architecture: str) -> None:
    assert LIBRARY is not None
    options = [f"-DREAL={real(dtype)}", f"--gpu-architecture={architecture}", *OPTIONS]
    cubin, log = compile_source(
        LIBRARY, file, source(file), headers(), [*options, "--ptxas-options=-v"]
    )
    assert cubin.startswith(b"\x7fELF")
    assert "warning" not in log, log
    found = functions(log)
    assert set(found) == set(SIGNATURES[file])
    for name, used in found.items():
        assert used["spills"] == 0, f"{name} spills {used['spills']} bytes"
        of_warp = -(-used["registers"] // 8) * 8 * 256
        assert 0 < of_warp <= REGISTERS // blocks(file, dtype), f"{name}: {used}"


@needs_nvrtc
def test_a_spill_and_an_error_are_seen() -> None:
    assert LIBRARY is not None
    lines = [f"  float x{i} = p[{i}];" for i in range(64)]
    body = "\n".join([*lines, "  __syncthreads();", *(f"  p[{i}] = x{i};" for i in range(64))])
    text = f'extern "C" __global__ void k(volatile float* p) {{\n{body}\n}}\n'
    options = ["--gpu-architecture=sm_90", "--maxrregcount=32", "--ptxas-options=-v"]
    assert functions(compile_source(LIBRARY, "k.cu", text, {}, options)[1])["k"]["spills"] > 0
    with pytest.raises(CompileError, match=r'k\.cu\(1\): error: identifier "nothing"'):
        compile_source(LIBRARY, "k.cu", "int a = nothing;", {}, options[:1])


def test_every_source_is_known() -> None:
    assert {path.name for path in KERNELS.glob("*.cu")} == set(SIGNATURES)


@pytest.mark.parametrize("name", sorted(itertools.chain(*SIGNATURES.values())))
def test_signatures(name: str) -> None:
    """Kinds and sizes of the parameters of each kernel, as its source declares them."""
    device = Case("twin", "float32").device
    assert device.twin is not None
    function, types = device.function(name, "float32")
    found = device.twin.calls.twin_parameters(function).decode().split()

    def kind(t: type) -> str:
        if issubclass(t, ctypes.Structure):
            return f"s{ctypes.sizeof(t)}"
        if t is ctypes.c_uint64:
            return "p8"
        return {ctypes.c_double: "f8", ctypes.c_int: "i4", ctypes.c_longlong: "i8"}[t]

    assert found == [kind(t) for t in types]
