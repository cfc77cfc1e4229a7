"""Single kernel launches with NumPy arrays, through the driver's entry points."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.cuda.twin import Twin

INTEGERS = {1: ctypes.c_byte, 2: ctypes.c_short, 4: ctypes.c_int, 8: ctypes.c_longlong}
FLOATS = {4: ctypes.c_float, 8: ctypes.c_double}


class DriverError(Exception):
    """A CUresult other than success, with the twin's message."""

    def __init__(self, code: int, name: str, text: str):
        super().__init__(f"{name} ({code}): {text}" if text else f"{name} ({code})")
        self.code = code


class Array:
    """A copy of a NumPy array in device memory; freed with the object."""

    def __init__(self, context: Context, host: np.ndarray):
        self.context, self.address = context, 0
        self.sources: list[np.ndarray] = []  # sources of copies in flight
        self.shape, self.dtype = host.shape, host.dtype
        self.nbytes = host.nbytes
        address = ctypes.c_ulonglong()
        # An empty array has memory, too: a device address that must not be read.
        context.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(1, host.nbytes)))
        self.address = address.value
        self.put(host)

    def put(self, host: np.ndarray) -> None:
        data = np.array(host, self.dtype, order="C")
        self.sources.append(data)
        where = ctypes.c_void_p(data.ctypes.data)
        size = ctypes.c_size_t(data.nbytes)
        self.context.call(
            "cuMemcpyHtoDAsync_v2", ctypes.c_ulonglong(self.address), where, size, None
        )

    def get(self) -> np.ndarray:
        """Return its contents after all operations queued on the default stream."""
        host = np.empty(self.shape, self.dtype)
        where = ctypes.c_void_p(host.ctypes.data)
        size = ctypes.c_size_t(self.nbytes)
        self.context.call(
            "cuMemcpyDtoHAsync_v2", where, ctypes.c_ulonglong(self.address), size, None
        )
        return host

    def __del__(self) -> None:
        self.context.free(self.address)


class Context:
    """The device's context on this thread, with its modules and allocations."""

    def __init__(self, twin: Twin):
        self.twin = twin
        self.calls = ctypes.CDLL(twin.library)
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        """Call an entry point; DriverError unless it succeeds."""
        code = getattr(self.calls, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self.calls.cuGetErrorName(code, ctypes.byref(text))
            raise DriverError(code, (text.value or b"?").decode(), self.twin.fault())

    def array(self, host: Any, dtype: Any = None) -> Array:
        return Array(self, np.asarray(host, dtype))

    def free(self, address: int) -> None:
        """Free memory; after a fault, or after a reset of the device, nothing is left to free."""
        self.calls.cuMemFree_v2(ctypes.c_ulonglong(address))

    def module(
        self,
        name: str,
        source: str,
        headers: dict[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> Module:
        """Compile a module with the twin's compiler and load it."""
        return Module(self, self.twin.compiler.compile(name, source, headers or {}, list(options)))

    def synchronize(self) -> None:
        """Wait for the default stream, and thus for all blocking streams."""
        self.call("cuStreamSynchronize", None)


class Module:
    """Kernels by name: ``module.launch("add", (4,), (256,), x, y, n)``."""

    def __init__(self, context: Context, image: bytes):
        self.context = context
        self.handle = ctypes.c_void_p()
        context.call("cuModuleLoadData", ctypes.byref(self.handle), image)

    def function(self, kernel: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.context.call("cuModuleGetFunction", ctypes.byref(handle), self.handle, kernel.encode())
        return handle

    def allow_shared(self, kernel: str, size: int) -> None:
        """Allow launches with up to ``size`` bytes of dynamic shared memory."""
        self.context.call("cuFuncSetAttribute", self.function(kernel), 8, size)

    def launch(
        self,
        kernel: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *arguments: Any,
        shared: int = 0,
        stream: Any = None,
        cooperative: bool = False,
    ) -> None:
        """Run a kernel and wait for it, unless a stream is given.

        An argument is an Array, a number, None (a null pointer), a ctypes structure, or a NumPy
        array, which is copied to the device before and back after: then the stream must be None.
        cooperative: its blocks may wait at barriers of the grid.
        """
        function = self.function(kernel)
        kinds = self.context.twin.calls.twin_parameters(function).decode().split()
        if len(kinds) != len(arguments):
            raise TypeError(f"{kernel} takes {len(kinds)} arguments, {len(arguments)} are given")
        copies = {
            id(argument): (argument, self.context.array(argument))
            for argument in arguments
            if isinstance(argument, np.ndarray)
        }
        values = [
            converted(copies[id(argument)][1] if id(argument) in copies else argument, kind)
            for argument, kind in zip(arguments, kinds, strict=True)
        ]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        place = (*extents(grid), *extents(block), shared, stream, pointers)
        if cooperative:
            self.context.call("cuLaunchCooperativeKernel", function, *place)
        else:
            self.context.call("cuLaunchKernel", function, *place, None)
        if stream is None:
            self.context.synchronize()
            for host, copy in copies.values():
                if host.flags.writeable:
                    host[...] = copy.get()


def extents(size: int | Sequence[int]) -> tuple[int, int, int]:
    given = (size,) if isinstance(size, int) else tuple(size)
    return (*given, *[1] * (3 - len(given)))  # type: ignore[return-value]


def converted(argument: Any, kind: str) -> Any:
    """Return an argument as the ctypes value of a parameter such as "p8", "i4" or "s48"."""
    size = int(kind[1:])
    if isinstance(argument, ctypes.Structure | ctypes.Array):
        if ctypes.sizeof(argument) != size:
            raise TypeError(f"a structure of {ctypes.sizeof(argument)} bytes for one of {size}")
        return argument
    if kind[0] == "p":
        return ctypes.c_void_p(argument.address if isinstance(argument, Array) else argument)
    if kind[0] == "f":
        return FLOATS[size](argument)
    if kind[0] in "iu":
        return INTEGERS[size](argument)
    raise TypeError(f"{argument!r} for a structure of {size} bytes")
