"""A session's part on a device: its parameters there, and the executors that run on them."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from cavs import _cuda, _engine
from cavs.compiler.program import Program
from cavs.cuda.device import Device
from cavs.cuda.persistent import Chip, PersistentLoop, persistent_loops, persistent_text
from cavs.cuda.program import map_kernels
from cavs.cuda.storage import half_buffers
from cavs.errors import DeviceError, DeviceWarning
from cavs.frontend.parameter import Parameter

Array = NDArray[Any]
TENSOR_CORES, PLAIN_PRODUCTS = "matmul_mma.cu", "matmul.cu"
DECIDED = 20  # runs of one batch after which it is known whether its commands are replayed
PRECISIONS = ("float32", "tf32", "bfloat16")
_Walked = tuple[int, str, int, int, Sequence[int]]  # as cavs._cuda.Executor takes it
SHARED = ("parameters", "states", "outcomes", "workspaces")  # memory of all programs of a session


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


def persistent_plan(
    device: Device, program: Program, real: str, precision: str, half: Collection[int] = ()
) -> list[PersistentLoop]:
    """The loops of ``program`` whose narrow tasks one kernel can walk on ``device``.

    Arguments as of ``persistent_loops``. Empty where a grid cannot run all at once.
    """
    native = device.native
    if not native.shared_bytes:
        return []
    chip = Chip(native.multiprocessors, native.shared_bytes, device.narrow_rows)
    return persistent_loops(program, chip, real, precision, half)


class CudaEngine:
    """Parameters of one session on ``device``, and the executors that use them.

    owner: whose engine this is. precision: of products of float32 values, one of PRECISIONS; with
    "bfloat16" packed weights and values between kernels are stored in it, see cavs.cuda.storage.
    deterministic: libraries are asked for algorithms that add in one order alone. Everything else,
    sums too, is float32. The host's arrays fall behind with every step: ``download`` brings them up
    to date. DeviceError where the device fails, lacks memory, or a
    kernel does not compile; nothing of the host is changed then. A device that has failed for good
    is given up: the host's arrays stay what they were when they were last up to date.
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
        self._owner, self._of = ref(owner), list(parameters)
        for p in self._of:
            p.keep_copy(self)
        self.published = 0  # versions of parameters that are downloads of this copy
        self.lost = 0  # steps that a device given up has taken with it
        self._told = 0  # of these
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
            how = self._precision, self.device.cublas_lt or "", self.deterministic
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
        walked = self._persistent(program, half)
        storage, replay = sorted(half), self.device.replay
        return _cuda.Executor(
            encoded, self._parameters, image, named, storage, replay, cudnn, *walked
        )

    def _persistent(self, program: Program, half: Collection[int]) -> tuple[bytes, list[_Walked]]:
        """The kernels that walk narrow tasks, and what the executor needs to know of them."""
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
        """Lets go of the arrays given to ``executor``: others are in their place."""
        self.settle()
        self._parameters = None

    def lacks_cudnn(self) -> str:
        """Why LSTMs cannot run by cuDNN here, as far as is known before it is opened; or empty."""
        if self._precision == "bfloat16":
            return "with precision 'bfloat16' LSTMs run on the engine's own kernels"
        if self.deterministic:
            return (
                "deterministic=True, and NVIDIA does not say that LSTMs of cuDNN add in one order"
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

        Whether they were behind. DeviceWarning where steps are lost with a device.
        """
        before = self.lost
        behind = self.settle()
        if lost := self.lost - before:
            found = f"the GPU has failed, and with it {steps(lost)} of training since the host's"
            hint = "load a checkpoint, or train on from here: device='cpu', or a new process"
            warning = DeviceWarning(f"{found} parameters were last up to date", hint=hint)
            warnings.warn(warning, stacklevel=3)
        return behind

    def update_host(self) -> None:
        """As `download`; DeviceError where steps are lost with a device."""
        self.settle()
        if self.lost:
            raise DeviceError(
                f"the GPU has failed, and with it {steps(self.lost)} of training",
                hint="load a checkpoint, in a new process or on the CPU",
            )

    def lost_steps(self) -> int:
        """As `download`; how many steps were lost with the device since the last call."""
        self.settle()
        lost, self._told = self.lost - self._told, self.lost
        return lost

    def settle(self) -> bool:
        """`download` without a warning: `lost` says how many steps a failed device has taken."""
        try:
            behind = self._parameters is not None and self._parameters.download()
        except DeviceError:
            assert self._parameters is not None
            lost = self._parameters.lost()
            if lost is None:  # it still works
                raise
            self.lost += lost
            self._parameters, behind = None, False
            for p in self._of:
                p.copies = [copy for copy in p.copies if copy is not self]
        for p in self._of if behind else ():
            p.written()
            self.published += 1
        return behind

    def used(self) -> bool:
        """Whether the owner is still there."""
        return self._owner() is not None


def steps(number: int) -> str:
    """A number of steps in words."""
    return f"{number} step{'s' * (number != 1)}"
