"""The CUDA side of a session: its parameters on a device, and the executors that use them."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from cavs import _cuda, _engine
from cavs.codegen.update import UpdateProgram, update_text
from cavs.compiler.program import Program
from cavs.cuda.device import Device
from cavs.cuda.persistent import DeviceSpec, PersistentLoop, persistent_loops, persistent_text
from cavs.cuda.program import map_kernels
from cavs.cuda.storage import half_buffers
from cavs.errors import DeviceError, DeviceWarning
from cavs.frontend.parameter import Parameter

Array = NDArray[Any]
TENSOR_CORES, PLAIN_PRODUCTS = "matmul_mma.cu", "matmul.cu"
DECIDED = 20  # runs of one batch after which replaying its commands has been decided
PRECISIONS = ("float32", "tf32", "bfloat16")
_Persistent = tuple[int, str, int, int, Sequence[int]]  # see cavs._cuda.Executor
SHARED = ("parameters", "states", "outcomes", "workspaces")  # shared by all programs of a session


def headers() -> dict[str, str]:
    """Return the headers that kernels may include, by name."""
    return {name: text for name, text in _cuda.sources().items() if name.endswith(".cuh")}


def fixed_kernels(device: Device, real: str, precision: str) -> dict[str, bytes]:
    """Compile the kernels that every program uses; return images by file."""
    from concurrent.futures import ThreadPoolExecutor  # slow to import, and needed on devices alone

    texts, included, half = _cuda.sources(), headers(), precision == "bfloat16"
    unused = TENSOR_CORES if precision == "float32" else PLAIN_PRODUCTS
    names = [name for name in texts if name.endswith(".cu") and name != unused]
    with ThreadPoolExecutor() as pool:  # the compiler works without the GIL
        images = pool.map(
            lambda name: device.compile(name, texts[name], included, real, half), names
        )
        return dict(zip(names, images, strict=True))


def update_kernel(device: Device, real: str, program: UpdateProgram) -> bytes:
    """Compile the kernel of an optimiser's traced rule."""
    return device.compile("rule.cu", update_text(program, real), headers(), real)


def persistent_plan(
    device: Device, program: Program, real: str, precision: str, half: Collection[int] = ()
) -> list[PersistentLoop]:
    """Return the loops of ``program`` that a persistent kernel can run on ``device``.

    Arguments: see ``persistent_loops``. Empty if the device has no cooperative launches.
    """
    native = device.native
    if not native.shared_bytes:
        return []
    spec = DeviceSpec(native.multiprocessors, native.shared_bytes, device.narrow_rows)
    return persistent_loops(program, spec, real, precision, half)


class CudaEngine:
    """Parameters of one session on ``device``, and the executors that use them.

    owner: the session. precision: of products of float32 values, one of PRECISIONS; "bfloat16" also
    stores packed weights and values between kernels in it, see cavs.cuda.storage; everything else,
    sums included, is float32. deterministic: libraries use only algorithms with one order of sums.

    Steps change the parameters on the device; ``download`` updates the host's arrays. DeviceError,
    which changes nothing on the host, if the device fails or lacks memory, or if a kernel does not
    compile. After a permanent failure the device is given up: the host's arrays keep the values of
    the last download.
    """

    def __init__(
        self,
        device: Device,
        owner: object,
        parameters: Iterable[Parameter],
        precision: str = "float32",
        deterministic: bool = False,
    ) -> None:
        self.device, self._precision, self.deterministic = device, precision, deterministic
        parameters = list(parameters)
        # Parameters refer to their copy: without a cycle its memory is free once both are dropped.
        self._owner, self._of = ref(owner), [ref(p) for p in parameters]
        for p in parameters:
            p.keep_copy(self)
        self.published = 0  # versions of parameters that are downloads of this copy
        self.lost = 0  # steps lost with a failed device
        self._reported_lost = 0
        self._real = ""
        self._parameters: _cuda.Parameters | None = None
        self._cudnn: _cuda.Cudnn | None = None

    def executor(
        self, program: Program, encoded: _engine.Program, arrays: Sequence[Array]
    ) -> _cuda.Executor:
        """Return an executor of ``program``, encoded for the engine as ``encoded``.

        arrays: those of all parameters, of one dtype, the same for every program of the session. A
        program with LSTMs needs cuDNN, see ``lacks_cudnn``.
        """
        if self._parameters is None:
            self._real = "double" if arrays[0].dtype == np.float64 else "float"
            images = fixed_kernels(self.device, self._real, self._precision)
            compiler = partial(update_kernel, self.device, self._real)
            how = self._precision, self.device.cublas_lt or "", self.deterministic, compiler
            self._parameters = _cuda.Parameters(self.device.native, images, list(arrays), *how)
        half = half_buffers(program) if self._precision == "bfloat16" else frozenset()
        maps = map_kernels(program, self._real, half)
        named = [(i, name, n) for i, (name, n) in enumerate(maps.kernels) if name]
        image = b""
        if named:
            included = headers() if half else {}
            image = self.device.compile("maps.cu", maps.text, included, self._real)
        lstms = any(i.traits.cudnn for i in program.instructions)
        cudnn = self._open_cudnn() if lstms else None
        persistent = self._persistent(program, half)
        storage, replay = sorted(half), self.device.replay
        return _cuda.Executor(
            encoded, self._parameters, image, named, storage, replay, cudnn, *persistent
        )

    def _persistent(
        self, program: Program, half: Collection[int]
    ) -> tuple[bytes, list[_Persistent]]:
        """Compile the persistent kernels; return their image and description."""
        if self.device.persistent == "never":
            return b"", []
        loops = persistent_plan(self.device, program, self._real, self._precision, half)
        if not loops:
            return b"", []
        rounded = self._precision == "bfloat16"
        text = persistent_text(loops, self._real, rounded)
        image = self.device.compile("persistent.cu", text, headers(), self._real, rounded)
        return image, [(x.stage, x.name, x.blocks, x.shared, x.instructions) for x in loops]

    def forget(self) -> None:
        """Drop the arrays given to ``executor``, which others have replaced."""
        self.settle()
        self._parameters = None

    def lacks_cudnn(self) -> str:
        """Return why cuDNN cannot run LSTMs here, as far as known before opening it, or ""."""
        if self._precision == "bfloat16":
            return "with precision 'bfloat16' LSTMs run on the engine's own kernels"
        if self.deterministic:
            return (
                "deterministic=True, and NVIDIA does not promise one order of sums in cuDNN's LSTMs"
            )
        return "" if self.device.cudnn_library else "libcudnn.so was not found"

    def _open_cudnn(self) -> _cuda.Cudnn:
        if self._cudnn is None:
            library = self.device.cudnn_library
            assert library is not None
            wide = self._real == "double"
            self._cudnn = _cuda.Cudnn(self.device.native, library, self._precision, wide)
        return self._cudnn

    def invalidate(self) -> None:
        """Note that the host's arrays were written: the next run uploads them."""
        if self._parameters is not None:
            self._parameters.invalidate()

    def write(self, parameters: Sequence[int]) -> None:
        """Like `invalidate`, for some parameters by number, which the device does not update."""
        if self._parameters is not None:
            self._parameters.write(parameters)

    def write_rows(self, parameter: int, rows: Array, width: int) -> None:
        """Like `write`, for some rows of a table of that `width` only."""
        if self._parameters is not None:
            self._parameters.write_rows(parameter, rows, width)

    def download(self) -> bool:
        """Update the host's arrays: parameters, and states of the last optimiser.

        Return True if they were out of date. DeviceWarning if steps were lost with the device.
        """
        before = self.lost
        behind = self.settle()
        if lost := self.lost - before:
            found = f"the GPU has failed, and {steps(lost)} of training since the last download"
            hint = "load a checkpoint, or train on from here: device='cpu', or a new process"
            warning = DeviceWarning(f"{found} of the parameters were lost", hint=hint)
            warnings.warn(warning, stacklevel=3)
        return behind

    def update_host(self) -> None:
        """Like `download`, but DeviceError if steps were lost with the device."""
        self.settle()
        if self.lost:
            raise DeviceError(
                f"the GPU has failed, and {steps(self.lost)} of training were lost",
                hint="load a checkpoint, in a new process or on the CPU",
            )

    def lost_steps(self) -> int:
        """Like `download`; return the number of steps lost with the device since the last call."""
        self.settle()
        lost, self._reported_lost = self.lost - self._reported_lost, self.lost
        return lost

    def settle(self) -> bool:
        """Like `download`, without a warning: `lost` counts the steps lost with a failed device."""
        try:
            behind = self._parameters is not None and self._parameters.download()
        except DeviceError:
            assert self._parameters is not None
            lost = self._parameters.lost()
            if lost is None:  # the device still works
                raise
            self.lost += lost
            self._parameters, behind = None, False
            for p in self._alive():
                p.copies = [copy for copy in p.copies if copy is not self]
        for p in self._alive() if behind else ():
            p.written()
            self.published += 1
        return behind

    def _alive(self) -> list[Parameter]:
        return [p for found in self._of if (p := found()) is not None]

    def used(self) -> bool:
        """True if the owner is still alive."""
        return self._owner() is not None


def steps(number: int) -> str:
    """Return a number of steps in words."""
    return f"{number} step{'s' * (number != 1)}"
