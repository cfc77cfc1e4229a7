"""Devices for kernel tests: the host twin, and the machine's GPU if it has one."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from cavs.cuda import libraries
from cavs.cuda.nvrtc import Nvrtc
from tests.cuda import hardware
from tests.cuda import kernel_signatures as kernels
from tests.cuda.twin import Twin, TwinCompiler, missing

NO_NVRTC = "NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12"
Compile = Callable[[str, str, dict[str, str], list[str]], bytes]


class Array:
    """A copy of a NumPy array in device memory."""

    def __init__(self, device: Device, host: np.ndarray):
        self.device, self.shape, self.dtype = device, host.shape, host.dtype
        self.itemsize = host.itemsize
        data = np.ascontiguousarray(host)
        address = ctypes.c_uint64()
        size = ctypes.c_size_t(max(data.nbytes, 1))
        device.call("cuMemAlloc_v2", ctypes.byref(address), size)
        self.address = address.value
        if data.nbytes:
            start = ctypes.c_void_p(data.ctypes.data)
            device.call("cuMemcpyHtoDAsync_v2", address, start, size, None)
            device.call("cuStreamSynchronize", None)  # `data` may be freed after this

    def get(self) -> np.ndarray:
        host = np.empty(self.shape, self.dtype)
        if host.nbytes:
            to, size = ctypes.c_void_p(host.ctypes.data), ctypes.c_size_t(host.nbytes)
            start = ctypes.c_uint64(self.address)
            self.device.call("cuMemcpyDtoHAsync_v2", to, start, size, None)
            self.device.call("cuStreamSynchronize", None)
        return host

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self.device.driver.cuMemFree_v2(ctypes.c_uint64(self.address))


class Device:
    """Kernels of cuda/kernels by name, for the types of values in kernel_signatures.py."""

    def __init__(self, library: str, compiler: Compile, options: list[str], twin: Twin | None):
        self.driver, self.compiler, self.options = ctypes.CDLL(library), compiler, options
        self.twin = twin
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.function = functools.cache(self._function)
        self.fixed = functools.cache(self._fixed)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.driver, name)(*arguments)
        fault = self.twin.fault() if self.twin else ""
        assert status == 0, f"{name}: error {status} {fault}"

    def _fixed(self, file: str, dtype: str) -> ctypes.c_void_p:
        options = [*self.options, *kernels.definitions(dtype)]
        image = self.compiler(file, kernels.source(file), kernels.headers(), options)
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        return module

    def _function(self, name: str, dtype: str) -> tuple[ctypes.c_void_p, tuple[type, ...]]:
        file = next(f for f, names in kernels.SIGNATURES.items() if name in names)
        function = ctypes.c_void_p()
        module = self.fixed(file, dtype)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function, kernels.SIGNATURES[file][name]

    def launch(self, name: str, dtype: str, grid: tuple[int, ...], *arguments: Any) -> None:
        """Run a kernel in blocks of 256 and wait for it; None is a null pointer."""
        self.launch_function(*self.function(name, dtype), grid, *arguments)

    def launch_function(
        self,
        function: ctypes.c_void_p,
        types: tuple[type, ...],
        grid: tuple[int, ...],
        *arguments: Any,
    ) -> None:
        """Run a function with parameters of these types, otherwise as `launch`."""
        values = [
            x if isinstance(x, t) else t(getattr(x, "address", x or 0))
            for x, t in zip(arguments, types, strict=True)
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        sizes = [*grid, *[1] * (3 - len(grid)), 256, 1, 1, 0]
        self.call("cuLaunchKernel", function, *sizes, None, pointers, None)
        self.call("cuStreamSynchronize", None)

    def module(self, name: str, text: str, included: dict[str, str]) -> Generated:
        """Compile a text to kernels whose parameters are all of 8 bytes."""
        image = self.compiler(name, text, included, self.options)
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        return Generated(self, module)

    def array(self, host: Any, dtype: Any = None) -> Array:
        return Array(self, np.asarray(host, dtype))

    def structures(self, items: list[ctypes.Structure]) -> Array:
        """Copy an array of structures to the device."""
        data = b"".join(bytes(item) for item in items)
        return Array(self, np.frombuffer(data or b"\0", np.uint8))


class Generated:
    """Generated kernels by name; their parameters are addresses and numbers of 8 bytes."""

    def __init__(self, device: Device, module: ctypes.c_void_p):
        self.device, self.handle = device, module

    def launch(self, name: str, grid: int, block: int, *arguments: Any) -> None:
        """Run a kernel and wait for it; None is a null pointer."""
        function = ctypes.c_void_p()
        self.device.call("cuModuleGetFunction", ctypes.byref(function), self.handle, name.encode())
        values = [ctypes.c_uint64(getattr(x, "address", x or 0)) for x in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        self.device.call(
            "cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, None, pointers, None
        )
        self.device.call("cuStreamSynchronize", None)


@functools.cache
def host_twin(checked: bool | None = None) -> Device | str:
    """Return the host twin, or why it cannot be built; checked: see TwinCompiler."""
    if reason := missing():
        return reason
    twin = Twin()
    return Device(twin.library, TwinCompiler(checked).compile, [], twin)


@functools.cache
def gpu() -> Device | str:
    """Return this machine's GPU, or the reason why there is none."""
    if reason := hardware.absent():
        return reason
    library = libraries.find("nvrtc")
    assert library is not None, NO_NVRTC
    driver = ctypes.CDLL(libraries.DRIVER)
    major, minor = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, 0)
    options = [f"--gpu-architecture=sm_{major.value}{minor.value}", *kernels.OPTIONS]
    if os.environ.get("CAVS_LINE_INFO") == "1":
        options.append("--generate-line-info")
    return Device(libraries.DRIVER, Nvrtc(library.path).compile, options, None)
