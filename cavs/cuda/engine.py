"""A session's part on a device: its parameters there, and the executors that run on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from cavs import _cuda, _engine
from cavs.compiler.program import Program
from cavs.cuda.device import Device
from cavs.cuda.program import map_kernels
from cavs.cuda.storage import half_buffers
from cavs.frontend.parameter import Parameter

Array = NDArray[Any]
TENSOR_CORES, PLAIN_PRODUCTS = "matmul_mma.cu", "matmul.cu"
PRECISIONS = ("float32", "tf32", "bfloat16")


def headers() -> dict[str, str]:
    """What kernels may include, by name."""
    return {name: text for name, text in _cuda.sources().items() if name.endswith(".cuh")}


def fixed_kernels(device: Device, real: str, precision: str) -> dict[str, bytes]:
    """The kernels every program uses, by file."""
    texts, included, half = _cuda.sources(), headers(), precision == "bfloat16"
    unused = TENSOR_CORES if precision == "float32" else PLAIN_PRODUCTS
    names = [name for name in texts if name.endswith(".cu") and name != unused]
    with ThreadPoolExecutor() as pool:  # the compiler works without the GIL
        images = pool.map(
            lambda name: device.compile(name, texts[name], included, real, half), names
        )
        return dict(zip(names, images, strict=True))


class CudaEngine:
    """Parameters of one session on ``device``, and the executors that use them.

    owner: whose engine this is. precision: of products of float32 values, one of PRECISIONS; with
    "bfloat16" packed weights and values between kernels are stored in it, see cavs.cuda.storage.
    Everything else, sums too, is float32. The host's arrays fall behind with every step:
    ``download`` brings them up to date. DeviceError where the device fails, lacks memory, or a
    kernel does not compile; nothing of the host is changed then.
    """

    def __init__(
        self,
        device: Device,
        owner: object,
        parameters: Iterable[Parameter],
        precision: str = "float32",
    ) -> None:
        self.device, self._precision = device, precision
        self._owner, self._of = ref(owner), list(parameters)
        for p in self._of:
            p.keep_copy(self)
        self.published = 0  # versions of parameters that are downloads of this copy
        self._real = ""
        self._parameters: _cuda.Parameters | None = None
        self._cudnn: _cuda.Cudnn | None = None

    def executor(
        self, program: Program, encoded: _engine.Program, arrays: Sequence[Array]
    ) -> _cuda.Executor:
        """An executor of ``program``, of which ``encoded`` is the engine's form.

        arrays: of all parameters, of one dtype; the same for every program of the session. A
        program with LSTMs needs cuDNN, see ``lacks_cudnn``.
        """
        if self._parameters is None:
            self._real = "double" if arrays[0].dtype == np.float64 else "float"
            images = fixed_kernels(self.device, self._real, self._precision)
            blas = self.device.cublas_lt or ""
            self._parameters = _cuda.Parameters(
                self.device.native, images, list(arrays), self._precision, blas
            )
        half = half_buffers(program) if self._precision == "bfloat16" else frozenset()
        maps = map_kernels(program, self._real, half)
        named = [(i, name, n) for i, (name, n) in enumerate(maps.kernels) if name]
        image = b""
        if named:
            included = headers() if half else {}
            image = self.device.compile("maps.cu", maps.text, included, self._real)
        lstms = any(i.kind == "lstm" for i in program.instructions)
        cudnn = self._open_cudnn() if lstms else None
        return _cuda.Executor(encoded, self._parameters, image, named, sorted(half), cudnn)

    def lacks_cudnn(self) -> str:
        """Why LSTMs cannot run by cuDNN here, as far as is known before it is opened; or empty."""
        if self._precision == "bfloat16":
            return "with precision 'bfloat16' LSTMs run on the engine's own kernels"
        return "" if self.device.cudnn_library else "libcudnn.so was not found"

    def _open_cudnn(self) -> _cuda.Cudnn:
        if self._cudnn is None:
            library = self.device.cudnn_library
            assert library is not None
            wide = self._real == "double"
            self._cudnn = _cuda.Cudnn(self.device.native, library, self._precision, wide)
        return self._cudnn

    def invalidate(self) -> None:
        """The host's arrays were written: they go up before the next run."""
        if self._parameters is not None:
            self._parameters.invalidate()

    def write(self, parameters: Sequence[int]) -> None:
        """`invalidate` for the values of some, by number, which the device does not update."""
        if self._parameters is not None:
            self._parameters.write(parameters)

    def write_rows(self, parameter: int, rows: Array, width: int) -> None:
        """`write` for some rows of a table of that `width`; no others go up."""
        if self._parameters is not None:
            self._parameters.write_rows(parameter, rows, width)

    def download(self) -> bool:
        """Brings the host's arrays up to date: parameters, and states of the last optimiser.

        Whether they were behind.
        """
        behind = self._parameters is not None and self._parameters.download()
        for p in self._of if behind else ():
            p.version += 1
            self.published += 1
        return behind

    def used(self) -> bool:
        """Whether the owner is still there."""
        return self._owner() is not None
