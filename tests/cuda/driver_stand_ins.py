"""Stand-ins for a machine with a GPU: a driver in C++, and the part of CuPy that is used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from cavs.cuda import libraries

CXX = os.environ.get("CXX", "g++")
MISSING = "" if shutil.which(CXX) else f"the stand-in driver needs a C++ compiler, {CXX}"

# Every call reads its answers from environment variables FAKE_....
DRIVER = r"""
#include <cstdlib>
#include <cstring>
namespace {
int fact(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}
}
extern "C" {
int cuDriverGetVersion(int* version) {
  *version = fact("FAKE_VERSION", 12080);
  return fact("FAKE_FAILS", 0);
}
int cuInit(unsigned) { return fact("FAKE_INIT", fact("FAKE_DEVICES", 1) ? 0 : 100); }
int cuDeviceGet(int* device, int ordinal) {
  *device = 7 + ordinal;  // a handle is no ordinal
  return ordinal < fact("FAKE_DEVICES", 1) ? 0 : fact("FAKE_GET", 101);
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const int capability = fact("FAKE_CAPABILITY", 90);
  *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : -1;
  return device < 7;
}
#ifndef OLD
int cuDeviceGetName(char* name, int size, int device) {
  std::strncpy(name, "Stand-in 9000", size);
  return device < 7;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = size_t(3) << 29; return device < 7; }
#endif
int cuGetErrorName(int code, const char** name) {
  *name = code == 999 ? "CUDA_ERROR_UNKNOWN" : nullptr;
  return *name == nullptr;
}
}
"""


def build_driver(folder: Path, *defines: str) -> str:
    """Build the library of the stand-in driver; "-DOLD" leaves out entry points."""
    source, library = folder / "driver.cc", folder / "libcuda.so.1"
    source.write_text(DRIVER)
    command = [CXX, "-shared", "-fPIC", *defines, "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return str(library)


class OutOfMemoryError(MemoryError):
    pass


class CUDARuntimeError(RuntimeError):
    pass


def fake_cupy(total: int = 10_000, devices: int = 2) -> Any:
    """Return a module like CuPy for a GPU of `total` bytes; ``cupy.free`` is what is left."""
    cupy: Any = types.ModuleType("cupy")
    cupy.__version__ = "99.0"
    cupy.free, cupy.current, cupy.fails = total, [], ""

    class Block:
        made = 0

        def __init__(self, size: int) -> None:
            self.size = -(-size // 512) * 512
            if cupy.fails:
                raise CUDARuntimeError(cupy.fails)
            if self.size > cupy.free:
                raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes")
            cupy.free -= self.size
            Block.made += 1
            self.ptr = 0x1000 * Block.made
            self.mem = types.SimpleNamespace(size=self.size)

        def __del__(self) -> None:
            if hasattr(self, "ptr"):
                cupy.free += self.size

    class Device:
        def __init__(self, ordinal: int) -> None:
            self.ordinal = ordinal

        def __enter__(self) -> None:
            cupy.current.append(self.ordinal)

        def __exit__(self, *_: object) -> None:
            cupy.current.pop()

        @property
        def mem_info(self) -> tuple[int, int]:
            if cupy.fails:
                raise CUDARuntimeError(cupy.fails)
            return cupy.free, total

    class Stream:
        made = 0

        def __init__(self, non_blocking: bool = False) -> None:
            if cupy.fails:
                raise CUDARuntimeError(cupy.fails)
            assert non_blocking
            Stream.made += 1
            self.device, self.ptr = cupy.current[-1], 100 + Stream.made

    def count() -> int:
        if cupy.fails:
            raise CUDARuntimeError(cupy.fails)
        return devices

    def set_device(ordinal: int) -> None:
        cupy.current[:] = [ordinal]

    def current() -> int:
        if not cupy.current:  # cuInit has not been called either
            raise CUDARuntimeError("CUDA_ERROR_NOT_INITIALIZED: initialization error")
        return 1

    def alloc(size: int) -> Block:
        assert cupy.current[-1] == cupy.expected
        cupy.pending += 1  # work on the block in its stream
        return Block(size)

    def wait() -> None:
        assert cupy.current[-1] == cupy.expected
        cupy.pending = 0

    def free_bytes() -> int:
        assert cupy.current[-1] == cupy.expected
        return int(cupy.pooled)

    cupy.expected = cupy.pending = cupy.pooled = 0
    cupy.get_default_memory_pool = lambda: types.SimpleNamespace(free_bytes=free_bytes)
    cupy.cuda = types.SimpleNamespace(
        Device=Device,
        Stream=Stream,
        alloc=alloc,
        get_current_stream=lambda: types.SimpleNamespace(synchronize=wait),
        runtime=types.SimpleNamespace(getDeviceCount=count, setDevice=set_device),
        driver=types.SimpleNamespace(ctxGetCurrent=current),
    )
    return cupy


def strip(monkeypatch: pytest.MonkeyPatch, prefix: Path) -> None:
    """Hide CUDA: no pathfinder, no wheels, nothing on the loader's path, no torch."""
    monkeypatch.setattr(libraries, "_package_folders", lambda package: [])
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    for variable in ("LD_LIBRARY_PATH", "CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
